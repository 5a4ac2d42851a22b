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
  std::string call;
  Status status;
};

// One rank's trainer; the first call that is not OK ends it.
class Rank {
 public:
  Rank(const Program& program, const Way& way, const std::vector<Communicator>& communicators)
      : program_(program),
        way_(way),
        rank_(communicators[0].rank()),
        world_(communicators[0].size()),
        model_(ModelOf(program, program.model, rank_)) {
    EngineOptions options = way.options;
    options.offload = OffloadOf(way, options.offload, rank_);
    auto engine = Engine::Create(options, communicators, model_.parameters, model_.units);
    Must(engine.status(), "Create");
    engine_ = *std::move(engine);
    for (UnitId unit = 0; unit < Units(); ++unit) WriteUnit(unit, 0);
  }

  void Run(size_t index) {
    const Step& step = program_.steps[index];
    Random random(step.seed);
    const bool moves = index < way_.moves.size() && way_.moves[index];
    if (moves && step.seed % 2 == 0) Move(*way_.moves[index]);
    if (step.adds) AddLater();
    if (step.adopts) Adopt(static_cast<int>(step.seed % 7));
    for (int i = 0; i < step.writes; ++i) Access(random);
    if (step.evaluates) Evaluate(random);
    if (moves && step.seed % 2 == 1) Move(*way_.moves[index]);
    if (random.OneIn(4)) {
      const GroupOptions& group = program_.options.groups[0];
      Must(engine_->SetGroup(0, {.learning_rate = 0.02, .momentum = group.momentum}), "SetGroup");
    }
    const int overflow_rank = static_cast<int>(random.Below(world_));
    for (int batch = 0; batch < step.micro_batches; ++batch) {
      const bool last = !step.flush && batch + 1 == step.micro_batches;
      MicroBatch(step, random, batch, last, step.overflows && batch == 0 && rank_ == overflow_rank);
    }
    auto stats = engine_->Step();
    if (absl::IsFailedPrecondition(stats.status())) {  // no rank had a gradient, or too many skips
      Tell(std::string(stats.status().message()), 0.0);
      return;
    }
    Must(stats.status(), "Step");
    Tell("grad_norm", stats->grad_norm);
    Tell("loss_scale", stats->loss_scale);
    Tell("clip_factor", stats->clip_factor);
    Tell("step", static_cast<double>(stats->step));
    Tell("applied", stats->applied ? 1.0 : 0.0);
    if (stats->applied && random.OneIn(2)) ReadGradient(random);
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
    Outcome outcome = std::move(outcome_);
    if (program_.abandons) {
      Abandon();
    } else {
      Must(engine_->Close(), "Close");
    }
    return outcome;
  }

 private:
  // Ends in the middle of things. Who ends first may be missed by another, which then fails.
  void Abandon() {
    const Step& step = program_.steps.back();
    Random random(step.seed);
    try {
      MicroBatch(step, random, 0, random.OneIn(2), false);
    } catch (const Failure&) {
      return;
    }
    if (random.OneIn(2)) engine_->Step().IgnoreError();
    if (random.OneIn(2)) engine_->Close().IgnoreError();
  }

  static void Must(const Status& status, const char* call) {
    if (!status.ok()) throw Failure{call, status};
  }
  void Tell(std::string what, double value) { outcome_.told.emplace_back(std::move(what), value); }
  int ColorOf(ParameterId id) const {
    const int communicator = model_.parameters[id].communicator;
    return communicator == 0 ? 0 : program_.splits[communicator - 1].ColorOf(rank_);
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

  void Move(const OffloadOptions& offload) {
    Must(engine_->Move(OffloadOf(way_, offload, rank_)), "Move");
  }

  // The copies of all units become the masters; some are written before. Where they are not there
  // outside an acquire, by way of one. A disk that failed on this rank alone is told by Step.
  void Adopt(int salt) {
    const bool away = way_.options.zero_stage == 3;
    engine_->Quiesce().IgnoreError();
    for (UnitId unit = 0; unit < Units(); ++unit) {
      const bool writes = (unit + salt) % 2 == 0;
      if (away) Must(engine_->Acquire(unit, AcquireMode::kWrite), "Acquire(kWrite)");
      if (writes) Fill(unit, salt);
      if (away) Must(engine_->Release(unit), "Release");
    }
    Must(engine_->AdoptParameters(), "AdoptParameters");
  }

  void WriteUnit(UnitId unit, int salt) {
    Must(engine_->Acquire(unit, AcquireMode::kWrite), "Acquire(kWrite)");
    Fill(unit, salt);
    Must(engine_->Release(unit), "Release");
  }

  void Fill(UnitId unit, int salt) {
    for (const ParameterId id : IdsOf(unit, false)) {
      const TensorView view = engine_->Parameter(id);
      const int own = 5 * ColorOf(id);
      for (int64_t i = 0; i < view.elems; ++i) {
        Put(view, i, static_cast<float>((id * 50 + i * 7 + salt + own) % 61) / 32.0f - 1.0f);
      }
    }
  }

  // What the trainer sees goes into the outcome.
  void Look(UnitId unit, AcquireMode mode, bool nests = false) {
    Must(engine_->Acquire(unit, mode), "Acquire");
    if (nests) Must(engine_->Acquire(unit, mode), "Acquire");
    double sum = 0.0;
    for (const ParameterId id : IdsOf(unit, true)) {
      const TensorView view = engine_->Parameter(id);
      for (int64_t i = 0; i < view.elems; ++i) sum = sum * 0.5 + Get(view, i);
      for (int64_t i = 0; i < view.elems; ++i) sum += Get(view, i);
    }
    Tell(absl::StrCat("mode ", static_cast<int>(mode), " unit ", unit), sum);
    Must(engine_->Release(unit), "Release");
    if (nests) Must(engine_->Release(unit), "Release");
  }

  // In a stream of its own: what ranks draw may depend on what they hold.
  void Evaluate(Random& random) {
    Random own(random.Below(1 << 30));
    const auto from = static_cast<UnitId>(own.Below(Units()));
    const int times = static_cast<int>(1 + own.Below(2));
    for (int i = 0; i < times; ++i) {
      for (UnitId unit = from; unit < Units(); ++unit) Look(unit, AcquireMode::kEvaluate);
    }
  }

  void AddLater() {
    const Model later = ModelOf(program_, program_.later, rank_);
    Must(engine_->AddUnits(later.parameters, later.units), "AddUnits");
    const UnitId first = Units();
    model_.parameters.insert(model_.parameters.end(), later.parameters.begin(),
                             later.parameters.end());
    model_.units.insert(model_.units.end(), later.units.begin(), later.units.end());
    for (UnitId unit = first; unit < Units(); ++unit) WriteUnit(unit, 3);
  }

  void Access(Random& all) {
    Random random(all.Below(1 << 30));
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
    Tell(absl::StrCat("state ", static_cast<int>(state), " of ", model_.parameters[id].name),
         std::accumulate(values.begin(), values.end(), 0.0));
  }

  void ReadGradient(Random& random) {
    if (model_.parameters.empty()) return;
    const auto id = static_cast<ParameterId>(random.Below(std::ssize(model_.parameters)));
    if (model_.parameters[id].frozen) return;
    std::vector<float> values(engine_->Parameter(id).elems);
    Must(engine_->Read(id, StateKind::kGradient, 0, values), "Read(kGradient)");
    Tell("gradient of " + model_.parameters[id].name,
         std::accumulate(values.begin(), values.end(), 0.0));
  }

  void MicroBatch(const Step& step, Random& random, int batch, bool last, bool overflow) {
    const bool weighted = program_.options.reduction == GradientReduction::kWeightedMean;
    if (step.interrupts && random.OneIn(2)) Evaluate(random);
    Must(engine_->BeginMicroBatch(weighted ? 1.0 + rank_ : 1.0, last), "BeginMicroBatch");
    for (UnitId unit = 0; unit < Units(); ++unit) {
      const bool next = step.holds && unit + 1 < Units();
      if (next) Must(engine_->Acquire(unit + 1, AcquireMode::kForward), "Acquire");
      Look(unit, AcquireMode::kForward, step.nests);
      if (step.holds && unit > 0) Must(engine_->Release(unit), "Release");
    }
    if (step.interrupts && random.OneIn(2)) Evaluate(random);
    std::vector<UnitId> order(Units());
    std::iota(order.rbegin(), order.rend(), 0);
    const auto seed = static_cast<uint64_t>(random.Below(1 << 30));
    if (step.shuffled) std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
    for (const UnitId unit : order) {
      bool absent = false;
      for (int rank = 0; rank < world_; ++rank) {
        const bool out = step.sparse && random.OneIn(3);
        if (rank == (step.apart ? rank_ : 0)) absent = out;
      }
      if (!absent) {
        Backward(unit, batch, overflow ? (step.seed % 2 == 0 ? INFINITY : NAN) : 0.0f, step);
        continue;
      }
      // At stage 3 all ranks acquire alike, and say what others may have.
      if (step.apart) Look(unit, AcquireMode::kForward, step.nests);
      if (step.apart || step.seed % 2 == 0) Must(engine_->GradAbsent(unit), "GradAbsent");
    }
    ReportHeld();
  }

  // A report that waited for the next unit's backward pass.
  void ReportHeld() {
    if (held_ >= 0) Must(engine_->GradReady(std::exchange(held_, -1)), "GradReady");
  }

  // `spoils` goes into one element of each gradient, unless it is 0.
  void Backward(UnitId unit, int batch, float spoils, const Step& step) {
    Must(engine_->Acquire(unit, AcquireMode::kBackward), "Acquire(kBackward)");
    if (step.nests) Must(engine_->Acquire(unit, AcquireMode::kBackward), "Acquire(kBackward)");
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
      if (spoils != 0.0f && value.elems > 0) Put(gradient, value.elems / 2, spoils);
    }
    ReportHeld();
    if (step.holds) {
      held_ = unit;
    } else {
      Must(engine_->GradReady(unit), "GradReady");
    }
    Must(engine_->Release(unit), "Release");
    if (step.nests) Must(engine_->Release(unit), "Release");
  }

  const Program& program_;
  const Way& way_;
  const int rank_;
  const int world_;
  Model model_;
  std::unique_ptr<Engine> engine_;
  Outcome outcome_;
  UnitId held_ = -1;  // its backward pass is done, and it has not reported
};

bool Equal(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

bool Same(const Outcome& a, const Outcome& b, std::string* why) {
  const size_t told = std::min(a.told.size(), b.told.size());
  for (size_t i = 0; i < told; ++i) {
    const auto& [what, value] = a.told[i];
    if (what == b.told[i].first && Equal(value, b.told[i].second)) continue;
    *why = absl::StrCat("told ", i, ": ", what, " ", value, " and ", b.told[i].first, " ",
                        b.told[i].second);
    return false;
  }
  if (a.told.size() != b.told.size() || a.states.size() != b.states.size()) {
    *why = absl::StrCat("told ", a.told.size(), " and ", b.told.size(), ", states ",
                        a.states.size(), " and ", b.states.size());
    return false;
  }
  for (size_t i = 0; i < a.states.size(); ++i) {
    if (Equal(a.states[i], b.states[i])) continue;
    *why = absl::StrCat("state ", i, ": ", a.states[i], " and ", b.states[i]);
    return false;
  }
  return true;
}

}  // namespace

std::vector<Outcome> Run(const Program& program, const Way& way) {
  const std::vector<std::vector<Communicator>> communicators = MakeCommunicators(program);
  std::vector<Outcome> outcomes(program.world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < program.world; ++rank) {
    threads.emplace_back([&, rank] {
      std::string at = "Create";
      try {
        Rank trainer(program, way, communicators[rank]);
        for (size_t i = 0; i < program.steps.size(); ++i) {
          at = absl::StrCat("step ", i);
          trainer.Run(i);
        }
        at = "end";
        outcomes[rank] = trainer.Finish();
      } catch (const Failure& failure) {
        outcomes[rank].failed_in = absl::StrCat(at, ", ", failure.call);
        outcomes[rank].failure = failure.status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

std::string Compare(const std::vector<Outcome>& a, const std::vector<Outcome>& b) {
  std::string all;
  for (size_t rank = 0; rank < a.size(); ++rank) {
    std::string why;
    if (!b[rank].failure.ok()) {
      why = absl::StrCat(b[rank].failed_in, ": ", b[rank].failure.ToString());
    } else if (Same(a[rank], b[rank], &why)) {
      continue;
    }
    absl::StrAppend(&all, "rank ", rank, ": ", why, "\n");
  }
  return all;
}

std::string CompareFaulty(const std::vector<Outcome>& a, const std::vector<Outcome>& faulty) {
  const Outcome& first = faulty[0];
  if (first.failure.ok()) return Compare(a, faulty);
  std::string all;
  bool broken = !absl::IsDataLoss(first.failure) && !absl::IsResourceExhausted(first.failure) &&
                !absl::IsUnavailable(first.failure);
  for (size_t rank = 0; rank < faulty.size(); ++rank) {
    const Outcome& other = faulty[rank];
    broken |= other.failed_in != first.failed_in || other.failure.code() != first.failure.code();
    absl::StrAppend(&all, "rank ", rank, ": ", other.failed_in, ": ", other.failure.ToString(),
                    "\n");
  }
  return broken ? all : "";
}

}  // namespace zerohold::fuzz
