#include "bench/stress/verify.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "optim/kernels/update.h"
#include "src/base/status_macros.h"

namespace zerohold::bench {
namespace {

struct State {
  StateKind kind;
  const char* name;
};

std::vector<State> StatesOfRule(UpdateRule rule) {
  const kernels::RuleFacts& facts = *kernels::FactsOf(rule);
  std::vector<State> states = {{StateKind::kMaster, "master"}};
  if (facts.moment1) states.push_back({StateKind::kMoment1, "moment1"});
  if (facts.moment2) states.push_back({StateKind::kMoment2, "moment2"});
  return states;
}

// An engine of one rank and one unit that has done what the unit's share of the real one did.
StatusOr<std::unique_ptr<Engine>> Recompute(const StressModel& model, int64_t unit, int world,
                                            const StressOptions& options, int64_t steps) {
  EngineOptions plain = options.Engine(0);
  plain.zero_stage = 0;
  plain.offload = {};
  plain.trace_path.clear();
  const StressModel one = model.OneUnit();
  ZH_ASSIGN_OR_RETURN(
      std::unique_ptr<Engine> engine,
      Engine::Create(plain, {SelfCommunicator()}, one.parameter_specs, one.unit_specs));
  ZH_RETURN_IF_ERROR(engine->Acquire(0, AcquireMode::kWrite));
  AddFirstValues(one, unit, engine->Parameter(0));
  ZH_RETURN_IF_ERROR(engine->Release(0));
  for (int64_t step = 1; step <= steps; ++step) {
    ZH_RETURN_IF_ERROR(engine->BeginMicroBatch());
    ZH_RETURN_IF_ERROR(engine->Acquire(0, AcquireMode::kBackward));
    for (int rank = 0; rank < world; ++rank) {
      AddGradient(one, {unit, step, rank, world}, engine->Gradient(0));
    }
    ZH_RETURN_IF_ERROR(engine->GradReady(0));
    ZH_RETURN_IF_ERROR(engine->Release(0));
    ZH_RETURN_IF_ERROR(engine->Step().status());
  }
  return engine;
}

struct Ranges {
  std::vector<float> real;
  std::vector<float> recomputed;
};

// What the two engines have of one state of the unit. `reference` is null on ranks that only take
// part in the reads.
Status Compare(Engine& engine, Engine* reference, int64_t unit, const State& state,
               Ranges& ranges) {
  const auto id = static_cast<ParameterId>(unit);
  const int64_t elems = engine.Parameter(id).elems;
  const int64_t most = std::ssize(ranges.real);
  Status differs;
  for (int64_t begin = 0; begin < elems; begin += most) {
    const int64_t count = std::min(most, elems - begin);
    ZH_RETURN_IF_ERROR(engine.Read(id, state.kind, begin, std::span(ranges.real).first(count)));
    if (reference == nullptr || !differs.ok()) continue;
    ZH_RETURN_IF_ERROR(
        reference->Read(0, state.kind, begin, std::span(ranges.recomputed).first(count)));
    if (std::memcmp(ranges.real.data(), ranges.recomputed.data(), count * sizeof(float)) == 0) {
      continue;
    }
    const auto at =
        std::mismatch(ranges.real.begin(), ranges.real.begin() + count, ranges.recomputed.begin(),
                      [](float a, float b) { return std::memcmp(&a, &b, sizeof(a)) == 0; });
    differs = absl::DataLossError(absl::StrCat(
        "--verify: unit ", unit, ", ", state.name, ", element ",
        begin + (at.first - ranges.real.begin()), " is ", *at.first, ", recomputed ", *at.second));
  }
  return differs;
}

}  // namespace

// Each rank recomputes one unit of as many as there are ranks; all read all of them.
Status VerifyStates(Engine& engine, const StressModel& model, const StressOptions& options,
                    int64_t steps, Ranks& ranks) {
  Ranges ranges;
  ranges.real.resize(options.record_elems);
  ranges.recomputed.resize(options.record_elems);
  const std::vector<State> states = StatesOfRule(options.Rule());
  for (int64_t first = 0; first < model.units; first += ranks.size()) {
    const int64_t mine = first + ranks.rank();
    std::unique_ptr<Engine> reference;
    Status made;
    if (mine < model.units) {
      auto engine_or = Recompute(model, mine, ranks.size(), options, steps);
      made = engine_or.status();
      if (made.ok()) reference = *std::move(engine_or);
    }
    ZH_RETURN_IF_ERROR(ranks.Agree(made));
    const int64_t last = std::min<int64_t>(model.units, first + ranks.size());
    Status same;
    for (int64_t unit = first; unit < last; ++unit) {
      for (const State& state : states) {
        Engine* const its = unit == mine ? reference.get() : nullptr;
        same.Update(Compare(engine, its, unit, state, ranges));
      }
    }
    ZH_RETURN_IF_ERROR(ranks.Agree(same));
  }
  return absl::OkStatus();
}

}  // namespace zerohold::bench
