// Ranks as threads over the engine's core, which can be given a disk.
#include "tests/optim/faults/drill.h"

#include <absl/strings/str_cat.h>

#include <cmath>
#include <span>
#include <thread>
#include <utility>

#include "optim/engine/engine_core.h"
#include "src/base/hash.h"
#include "src/comm/thread_communicator.h"
#include "tests/support/trainer.h"

namespace zerohold::faults {
namespace {

using engine::Call;
using engine::EngineCore;
using testing::Trainer;

class Rank {
 public:
  Rank(const Training& training, int rank, Disk& disk, Outcome& outcome)
      : training_(training),
        rank_(rank),
        disk_(disk),
        outcome_(outcome),
        model_(testing::TensorsInUnits({900, 200})) {
    for (ParameterSpec& parameter : model_.parameters) parameter.dtype = training.dtype;
  }

  void Train(std::shared_ptr<comm::Communicator> communicator) {
    auto core = EngineCore::Create({.options = training_.options,
                                    .communicators = {std::move(communicator)},
                                    .parameters = model_.parameters,
                                    .units = model_.units,
                                    .backend = [this] { return disk_.Backend(); }});
    if (!Must(core.status(), "Create")) return;
    core_ = *std::move(core);
    disk_.Expect(core_->layout());
    if (!Script()) {
      Call call{.kind = Call::Kind::kStep};
      outcome_.after = Submit(call);
    }
    outcome_.closed = core_->Stop();
    core_.reset();
  }

 private:
  bool Script() {
    for (UnitId unit = 0; unit < Units(); ++unit) {
      if (!WriteUnit(unit, 0.0f)) return false;
    }
    for (size_t step = 0; step < training_.steps.size(); ++step) {
      if (training_.rewrites && step + 1 == training_.steps.size() && !Rewrite()) return false;
      if (!Step(static_cast<int>(step), training_.steps[step])) return false;
    }
    return ReadAll() && Evaluate() && Must(Do({.kind = Call::Kind::kQuiesce}), "Quiesce");
  }

  bool Rewrite() {
    const std::vector<float> values(100, 0.25f);
    disk_.Do(Doing::kWrite);
    return Must(Do({.kind = Call::Kind::kWrite,
                    .parameter = 0,
                    .state = StateKind::kMoment1,
                    .begin = 500,
                    .values = values}),
                "Write") &&
           WriteUnit(1, 0.5f);
  }

  bool WriteUnit(UnitId unit, float shift) {
    disk_.Do(Doing::kWrite);
    if (!Must(Acquire(unit, AcquireMode::kWrite), "Acquire(kWrite)")) return false;
    const TensorView view = View(unit, core_->memory().ParameterAddress(SpaceOf(unit)));
    for (int64_t i = 0; i < view.elems; ++i) {
      Trainer::Put(view, i, std::sin(static_cast<float>(unit * 1000 + i)) + shift);
    }
    const bool released = Must(Release(unit), "Release");
    disk_.Do(Doing::kTrain);
    return released;
  }

  bool Step(int step, StepKind kind) {
    disk_.BeginStep();
    disk_.Do(kind == StepKind::kPlain  ? Doing::kTrain
             : kind == StepKind::kSkip ? Doing::kSkip
                                       : Doing::kBlame);
    if (!Must(Do({.kind = Call::Kind::kBeginMicroBatch}), "BeginMicroBatch")) return false;
    for (UnitId unit = 0; unit < Units(); ++unit) {
      if (!Look(unit, AcquireMode::kForward)) return false;
    }
    for (UnitId unit = Units() - 1; unit >= 0; --unit) {
      if (!Backward(unit, step, kind)) return false;
    }
    Call call{.kind = Call::Kind::kStep};
    const Status status = Submit(call);
    const bool blames = kind == StepKind::kBlame && absl::IsFailedPrecondition(status);
    if (!blames && !Must(status, absl::StrCat("Step ", step))) return false;
    Saw(std::as_bytes(std::span(&call.stats.grad_norm, 1)));
    if (blames) Saw(std::as_bytes(std::span(status.message().data(), status.message().size())));
    outcome_.answered = outcome_.seen.size();
    disk_.Do(Doing::kTrain);
    return true;
  }

  bool Backward(UnitId unit, int step, StepKind kind) {
    if (!Must(Acquire(unit, AcquireMode::kBackward), "Acquire(kBackward)")) return false;
    const TensorView values = View(unit, core_->memory().ParameterAddress(SpaceOf(unit)));
    const TensorView gradient = View(unit, core_->memory().GradientAddress(SpaceOf(unit)));
    Saw({static_cast<const std::byte*>(values.data), ViewBytes(values)});
    for (int64_t i = 0; i < values.elems; ++i) {
      const auto phase = static_cast<float>((i * 7 + unit * 13 + rank_ * 5 + step * 3) % 97);
      Trainer::Put(gradient, i, Trainer::Get(values, i) * 0.1f + 0.01f * (phase - 48.0f));
    }
    if (kind != StepKind::kPlain && unit == 0) Trainer::Put(gradient, 700, INFINITY);
    Call ready{.kind = Call::Kind::kGradReady, .unit = unit};
    return Must(Submit(ready), "GradReady") && Must(Release(unit), "Release");
  }

  bool Look(UnitId unit, AcquireMode mode) {
    if (!Must(Acquire(unit, mode), "Acquire")) return false;
    const TensorView view = View(unit, core_->memory().ParameterAddress(SpaceOf(unit)));
    Saw({static_cast<const std::byte*>(view.data), ViewBytes(view)});
    return Must(Release(unit), "Release");
  }

  bool Evaluate() {
    for (UnitId unit = 0; unit < Units(); ++unit) {
      if (!Look(unit, AcquireMode::kEvaluate)) return false;
    }
    return true;
  }

  bool ReadAll() {
    disk_.Do(Doing::kRead);
    for (ParameterId id = 0; id < std::ssize(model_.parameters); ++id) {
      for (const StateKind state :
           {StateKind::kMaster, StateKind::kMoment1, StateKind::kMoment2, StateKind::kGradient}) {
        std::vector<float> values(model_.parameters[id].shape[0]);
        const Status status =
            Do({.kind = Call::Kind::kRead, .parameter = id, .state = state, .out = values});
        if (!Must(status, "Read")) return false;
        Saw(std::as_bytes(std::span(values)));
        outcome_.answered = outcome_.seen.size();
      }
    }
    disk_.Do(Doing::kTrain);
    return true;
  }

  // One call, with the arguments of one.
  struct Arguments {
    Call::Kind kind;
    UnitId unit = -1;
    AcquireMode mode = AcquireMode::kForward;
    ParameterId parameter = -1;
    StateKind state = StateKind::kMaster;
    int64_t begin = 0;
    std::span<float> out{};
    std::span<const float> values{};
  };
  Status Do(const Arguments& with) {
    Call call{.kind = with.kind,
              .unit = with.unit,
              .mode = with.mode,
              .parameter = with.parameter,
              .state = with.state,
              .begin = with.begin,
              .out = with.out,
              .values = with.values};
    return Submit(call);
  }
  Status Submit(Call& call) {
    core_->Submit(call);
    return call.status;
  }
  Status Acquire(UnitId unit, AcquireMode mode) {
    return Do({.kind = Call::Kind::kAcquire, .unit = unit, .mode = mode});
  }
  Status Release(UnitId unit) { return Do({.kind = Call::Kind::kRelease, .unit = unit}); }

  bool Must(const Status& status, const std::string& call) {
    if (status.ok()) return true;
    outcome_.failed = status;
    outcome_.failed_in = call;
    return false;
  }
  void Saw(std::span<const std::byte> bytes) { outcome_.seen.push_back(base::Hash(bytes, 0)); }

  UnitId Units() const { return static_cast<UnitId>(model_.units.size()); }
  // Each unit has one parameter, of the same number.
  int32_t SpaceOf(UnitId unit) const { return core_->layout().PlaceOf(unit).space; }
  TensorView View(UnitId unit, std::byte* space) const {
    const layout::Range range = core_->layout().PlaceOf(unit).range;
    return {space + range.begin * SizeOf(training_.dtype), training_.dtype, {}, range.size()};
  }
  size_t ViewBytes(const TensorView& view) const {
    return static_cast<size_t>(view.elems * SizeOf(view.dtype));
  }

  const Training& training_;
  const int rank_;
  Disk& disk_;
  Outcome& outcome_;
  testing::ModelSpec model_;
  std::unique_ptr<EngineCore> core_;
};

EngineOptions Options(int stage, const std::vector<std::string>& folders) {
  EngineOptions options;
  options.zero_stage = stage;
  options.groups[0].learning_rate = 0.01;
  options.clip_grad_norm = 1.0;
  options.communication_timeout_s = 20;
  options.bucket_elems = 512;
  options.record_elems = 256;
  options.update_threads = 1;
  options.check_collective_order = false;
  options.notice = [](const std::string&) {};
  options.offload.nvme_paths = folders;
  options.offload.window = 1;
  return options;
}

}  // namespace

Drill RunDrill(const Training& training, const std::vector<io::FaultSpec>& faults) {
  Drill drill;
  drill.outcomes.resize(training.world);
  for (int rank = 0; rank < training.world; ++rank) {
    drill.disks.push_back(std::make_unique<Disk>(training.options, faults[rank]));
  }
  const auto communicators = comm::CreateThreadCommunicators(training.world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < training.world; ++rank) {
    threads.emplace_back([&, rank] {
      Rank(training, rank, *drill.disks[rank], drill.outcomes[rank]).Train(communicators[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return drill;
}

std::vector<Training> Trainings(const std::vector<std::string>& folders) {
  std::vector<Training> all;
  const auto add = [&](const char* name, int world, int stage, DType dtype) -> Training& {
    all.push_back(
        {.name = name, .world = world, .dtype = dtype, .options = Options(stage, folders)});
    OffloadOptions& offload = all.back().options.offload;
    if (stage >= 2) offload.host.gradients = 0;
    if (stage >= 3) offload.host.parameters = 0;
    return all.back();
  };
  const auto later = [](Training& training) {
    training.options.overlap_next_forward = true;
    training.steps = {StepKind::kPlain, StepKind::kPlain, StepKind::kSkip, StepKind::kPlain};
  };
  add("stage 1", 1, 1, DType::kFloat32).options.offload.window = 2;
  add("stage 1 of two, rewritten", 2, 1, DType::kBFloat16).rewrites = true;
  later(add("stage 1 of two, under forward", 2, 1, DType::kFloat32));
  add("stage 2", 1, 2, DType::kFloat16).options.offload.window = 3;
  // Masters are the copies here, so updates read them; rewriting reads all.
  Training& whole = add("stage 3, rewritten", 1, 3, DType::kFloat32);
  whole.rewrites = true;
  whole.steps = {StepKind::kPlain, StepKind::kPlain};
  Training& remainder = add("stage 3 of two, remainder", 2, 3, DType::kBFloat16);
  remainder.options.master = MasterForm::kRemainder;
  later(add("stage 3 of two, under forward", 2, 3, DType::kBFloat16));
  Training& blamed = add("stage 3 of two, blamed", 2, 3, DType::kBFloat16);
  blamed.options.loss_scale.enabled = true;
  blamed.options.loss_scale.max_skips = 1;
  blamed.steps = {StepKind::kPlain, StepKind::kBlame, StepKind::kPlain};
  // Some of each is in memory.
  Training& mixed = add("stage 3 of two, mixed", 2, 3, DType::kBFloat16);
  mixed.options.offload.host.states = 256 * 12;
  mixed.options.offload.host.gradients = mixed.options.offload.host.parameters = 1024;
  return all;
}

}  // namespace zerohold::faults
