// Carries out a program on threads as ranks.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>
#include <thread>

#include "src/base/convert.h"
#include "tests/optim/fuzz/program.h"

namespace zerohold::fuzz {
namespace {

float Get(const TensorView& view, int64_t i) {
  if (view.dtype == DType::kFloat32) return static_cast<const float*>(view.data)[i];
  const uint16_t bits = static_cast<const uint16_t*>(view.data)[i];
  return view.dtype == DType::kBFloat16 ? base::BFloat16ToFloat(bits) : base::Float16ToFloat(bits);
}

void Put(const TensorView& view, int64_t i, float value) {
  if (view.dtype == DType::kFloat32) {
    static_cast<float*>(view.data)[i] = value;
    return;
  }
  static_cast<uint16_t*>(view.data)[i] =
      view.dtype == DType::kBFloat16 ? base::FloatToBFloat16(value) : base::FloatToFloat16(value);
}

struct Failure {
  std::string text;
};

// One rank's trainer; the first call that is not OK ends it.
class Rank {
 public:
  Rank(const Program& program, const EngineOptions& options, const Communicator& ranks)
      : program_(program), model_(program.model), rank_(ranks.rank()), world_(ranks.size()) {
    auto engine = Engine::Create(options, {ranks}, model_.parameters, model_.units);
    Must(engine.status(), "Create");
    engine_ = *std::move(engine);
    for (UnitId unit = 0; unit < Units(); ++unit) WriteUnit(unit, 0);
  }

  void Run(const Step& step) {
    Random random(step.seed);
    if (step.adds) AddLater();
    for (int i = 0; i < step.writes; ++i) Access(random);
    if (step.evaluates) Evaluate(random);
    const int overflow_rank = static_cast<int>(random.Below(world_));
    for (int batch = 0; batch < step.micro_batches; ++batch) {
      const bool last = !step.flush && batch + 1 == step.micro_batches;
      MicroBatch(step, random, batch, last, step.overflows && batch == 0 && rank_ == overflow_rank);
    }
    auto stats = engine_->Step();
    if (absl::IsFailedPrecondition(stats.status())) {  // no rank had a gradient
      outcome_.told.push_back(-1.0);
      return;
    }
    Must(stats.status(), "Step");
    outcome_.told.insert(outcome_.told.end(),
                         {stats->grad_norm, stats->loss_scale, stats->clip_factor,
                          static_cast<double>(stats->step), stats->applied ? 1.0 : 0.0});
  }

  Outcome Finish() {
    for (ParameterId id = 0; id < std::ssize(model_.parameters); ++id) {
      for (const StateKind state : {StateKind::kMaster, StateKind::kMoment1, StateKind::kMoment2}) {
        if (!Has(id, state)) continue;
        std::vector<float> values(engine_->Parameter(id).elems);
        Must(engine_->Read(id, state, 0, values), "Read");
        outcome_.states.insert(outcome_.states.end(), values.begin(), values.end());
      }
    }
    Must(engine_->Quiesce(), "Quiesce");
    for (UnitId unit = 0; unit < Units(); ++unit) Look(unit, AcquireMode::kEvaluate);
    Must(engine_->Close(), "Close");
    return std::move(outcome_);
  }

 private:
  static void Must(const Status& status, const char* call) {
    if (!status.ok()) throw Failure{absl::StrCat(call, ": ", status.ToString())};
  }
  UnitId Units() const { return static_cast<UnitId>(model_.units.size()); }
  std::vector<ParameterId> IdsOf(UnitId unit, bool used) const {
    std::vector<ParameterId> ids;
    const UnitSpec& spec = model_.units[unit];
    for (const auto* names : {&spec.parameters, &spec.uses}) {
      if (names == &spec.uses && !used) break;
      for (const std::string& name : *names) ids.push_back(*engine_->FindParameter(name));
    }
    return ids;
  }
  bool Has(ParameterId id, StateKind state) const {
    if (state == StateKind::kMaster) return true;
    if (model_.parameters[id].frozen) return false;
    const UpdateRule rule = program_.options.rule;
    if (state == StateKind::kMoment1) return rule != UpdateRule::kAdagrad;
    return rule != UpdateRule::kSgd && rule != UpdateRule::kLion;
  }

  void WriteUnit(UnitId unit, int salt) {
    Must(engine_->Acquire(unit, AcquireMode::kWrite), "Acquire(kWrite)");
    for (const ParameterId id : IdsOf(unit, false)) {
      const TensorView view = engine_->Parameter(id);
      for (int64_t i = 0; i < view.elems; ++i) {
        Put(view, i, static_cast<float>((id * 50 + i * 7 + salt) % 61) / 32.0f - 1.0f);
      }
    }
    Must(engine_->Release(unit), "Release");
  }

  // What the trainer sees goes into the outcome.
  void Look(UnitId unit, AcquireMode mode) {
    Must(engine_->Acquire(unit, mode), "Acquire");
    double sum = 0.0;
    for (const ParameterId id : IdsOf(unit, true)) {
      const TensorView view = engine_->Parameter(id);
      for (int64_t i = 0; i < view.elems; ++i) sum = sum * 0.5 + Get(view, i);
      for (int64_t i = 0; i < view.elems; ++i) sum += Get(view, i);
    }
    outcome_.told.push_back(sum);
    Must(engine_->Release(unit), "Release");
  }

  void Evaluate(Random& random) {
    const auto from = static_cast<UnitId>(random.Below(Units()));
    const int times = static_cast<int>(1 + random.Below(2));
    for (int i = 0; i < times; ++i) {
      for (UnitId unit = from; unit < Units(); ++unit) Look(unit, AcquireMode::kEvaluate);
    }
  }

  void AddLater() {
    Must(engine_->AddUnits(program_.later.parameters, program_.later.units), "AddUnits");
    const UnitId first = Units();
    model_.parameters.insert(model_.parameters.end(), program_.later.parameters.begin(),
                             program_.later.parameters.end());
    model_.units.insert(model_.units.end(), program_.later.units.begin(),
                        program_.later.units.end());
    for (UnitId unit = first; unit < Units(); ++unit) WriteUnit(unit, 3);
  }

  void Access(Random& random) {
    const auto unit = static_cast<UnitId>(random.Below(Units()));
    if (random.OneIn(3)) return WriteUnit(unit, static_cast<int>(random.Below(100)));
    if (model_.parameters.empty()) return;
    const auto id = static_cast<ParameterId>(random.Below(std::ssize(model_.parameters)));
    const StateKind state =
        random.Of({StateKind::kMaster, StateKind::kMoment1, StateKind::kMoment2});
    const int64_t elems = engine_->Parameter(id).elems;
    const int64_t begin = random.Below(elems + 1);
    std::vector<float> values(random.Below(elems - begin + 1));
    const bool read = random.OneIn(2);
    for (float& value : values) value = static_cast<float>(random.Below(1000)) * 1e-3f;
    if (!Has(id, state)) return;
    if (!read) return Must(engine_->Write(id, state, begin, values), "Write");
    Must(engine_->Read(id, state, begin, values), "Read");
    outcome_.told.push_back(std::accumulate(values.begin(), values.end(), 0.0));
  }

  void MicroBatch(const Step& step, Random& random, int batch, bool last, bool overflow) {
    const bool weighted = program_.options.reduction == GradientReduction::kWeightedMean;
    Must(engine_->BeginMicroBatch(weighted ? 1.0 + rank_ : 1.0, last), "BeginMicroBatch");
    for (UnitId unit = 0; unit < Units(); ++unit) Look(unit, AcquireMode::kForward);
    std::vector<UnitId> order(Units());
    std::iota(order.rbegin(), order.rend(), 0);
    const auto seed = static_cast<uint64_t>(random.Below(1 << 30));
    if (step.shuffled) std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    // At stage 3 all ranks acquire alike; which report differs.
    const bool alike = random.OneIn(2);
    for (const UnitId unit : order) {
      bool absent = false;
      bool reports = true;
      for (int rank = 0; rank < world_; ++rank) {
        const bool out = step.sparse && random.OneIn(3);
        if (rank == (alike ? 0 : rank_)) absent = out;
      }
      if (absent) {
        if (!alike) Look(unit, AcquireMode::kForward);
        reports = false;
      }
      if (reports) Backward(unit, batch, overflow);
    }
  }

  void Backward(UnitId unit, int batch, bool overflow) {
    Must(engine_->Acquire(unit, AcquireMode::kBackward), "Acquire(kBackward)");
    const auto scale = static_cast<float>(engine_->LossScale());
    for (const ParameterId id : IdsOf(unit, true)) {
      const TensorView value = engine_->Parameter(id);
      const TensorView gradient = engine_->Gradient(id);
      if (gradient.data == nullptr) continue;
      for (int64_t i = 0; i < value.elems; ++i) {
        const auto phase = static_cast<float>((i * 7 + id * 13 + rank_ * 5 + batch * 3) % 97);
        const float add = (0.1f * Get(value, i) + 0.01f * (phase - 48.0f)) * 0.01f * scale;
        Put(gradient, i, Get(gradient, i) + add);
      }
      if (overflow && value.elems > 0) Put(gradient, value.elems / 2, INFINITY);
    }
    Must(engine_->GradReady(unit), "GradReady");
    Must(engine_->Release(unit), "Release");
  }

  const Program& program_;
  Model model_;
  const int rank_;
  const int world_;
  std::unique_ptr<Engine> engine_;
  Outcome outcome_;
};

bool Same(const Outcome& a, const Outcome& b, std::string* why) {
  const auto differ = [&](const auto& x, const auto& y, const char* what) {
    if (x.size() != y.size()) {
      *why = absl::StrCat(what, ": ", x.size(), " and ", y.size());
      return true;
    }
    for (size_t i = 0; i < x.size(); ++i) {
      if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) continue;
      *why = absl::StrCat(what, " ", i, " of ", x.size(), ": ", x[i], " and ", y[i]);
      return true;
    }
    return false;
  };
  return !differ(a.told, b.told, "told") && !differ(a.states, b.states, "states");
}

}  // namespace

Outcome Run(const Program& program, const EngineOptions& options) {
  std::vector<Communicator> ranks = ThreadCommunicators(program.world);
  std::vector<Outcome> outcomes(program.world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < program.world; ++rank) {
    threads.emplace_back([&, rank] {
      std::string at = "Create";
      try {
        Rank trainer(program, options, ranks[rank]);
        for (size_t i = 0; i < program.steps.size(); ++i) {
          at = absl::StrCat("step ", i);
          trainer.Run(program.steps[i]);
        }
        at = "end";
        outcomes[rank] = trainer.Finish();
      } catch (const Failure& failure) {
        outcomes[rank].failure = absl::StrCat("rank ", rank, ", ", at, ": ", failure.text);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 1; rank < program.world; ++rank) {
    if (!outcomes[rank].failure.empty())
      absl::StrAppend(&outcomes[0].failure, "\n", outcomes[rank].failure);
    std::string why;
    outcomes[rank].told = outcomes[0].told;  // ranks look at different units
    if (outcomes[0].failure.empty() && !Same(outcomes[0], outcomes[rank], &why)) {
      outcomes[0].failure = absl::StrCat("rank ", rank, " differs from rank 0: ", why);
    }
  }
  return std::move(outcomes[0]);
}

std::string Compare(const Outcome& a, const Outcome& b) {
  std::string why;
  return Same(a, b, &why) ? "" : why;
}

}  // namespace zerohold::fuzz
