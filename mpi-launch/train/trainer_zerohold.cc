// Trains through the engine: weights and gradients are views of the engine's memory, and autograd
// adds to the gradients in place.
//
// Invariants:
// 1. A unit is acquired for its forward pass, and again when the gradient comes to its output; the
//    second is released by the hook that sees the last of its gradients. So nothing here depends on
//    whether weights are at home between the two.
// 2. `.grad` of a weight is the engine's view from the first step to the last (checked every step).
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "mpi-launch/train/parameter_hash.h"
#include "mpi-launch/train/trainer.h"
#include "zerohold/engine.h"

namespace zerohold::train {
namespace {

using torch::Tensor;
using torch::autograd::variable_list;

// Statuses inside autograd travel as exceptions; main answers them.
void Require(const Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

Tensor AsTensor(const TensorView& view) {
  return torch::from_blob(view.data, {view.shape.data(), view.shape.size()}, torch::kFloat32);
}

class AfterAccumulate : public torch::autograd::FunctionPostHook {
 public:
  explicit AfterAccumulate(std::function<void()> call) : call_(std::move(call)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    call_();
    return outputs;
  }

 private:
  std::function<void()> call_;
};

class ZeroHoldTrainer : public Trainer, private UnitObserver {
 public:
  ZeroHoldTrainer(const Job& job, std::unique_ptr<Engine> engine)
      : job_(job), engine_(std::move(engine)), missing_(job.model.units().size()) {}

  // Binds weights and gradients to the engine's memory and writes the first values.
  Status Bind();

  StatusOr<StepReport> Step(int64_t step) override;
  StatusOr<std::string> ParametersHash() override;
  Status Close() override { return engine_->Close(); }

 private:
  void BeforeForward(int unit) override { Require(engine_->Acquire(unit, AcquireMode::kForward)); }
  void AfterForward(int unit) override { Require(engine_->Release(unit)); }
  void BeforeBackward(int unit) override {
    missing_[unit] = job_.model.units()[unit].count;
    Require(engine_->Acquire(unit, AcquireMode::kBackward));
  }
  void GradientArrived(int unit) {
    if (--missing_[unit] > 0) return;
    Require(engine_->GradReady(unit));
    Require(engine_->Release(unit));
  }
  void CheckGradients() const;

  const Job job_;
  std::unique_ptr<Engine> engine_;
  std::vector<Tensor> weights_;
  std::vector<size_t> missing_;  // gradients that each unit still waits for in this micro-batch
  // Torch holds the accumulators of leaves weakly: ours keep their hooks.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
};

Status ZeroHoldTrainer::Bind() {
  const std::vector<ModelUnit>& units = job_.model.units();
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    if (Status s = engine_->Acquire(unit, AcquireMode::kWrite); !s.ok()) return s;
    for (size_t index = units[unit].first; index < units[unit].first + units[unit].count; ++index) {
      const auto id = static_cast<ParameterId>(index);
      Tensor weight = AsTensor(engine_->Parameter(id));
      job_.model.Initialize(index, job_.options.seed, weight);
      weight.requires_grad_();
      weight.mutable_grad() = AsTensor(engine_->Gradient(id));
      accumulators_.push_back(torch::autograd::impl::grad_accumulator(weight));
      accumulators_.back()->add_post_hook(
          std::make_unique<AfterAccumulate>([this, unit] { GradientArrived(unit); }));
      weights_.push_back(std::move(weight));
    }
    if (Status s = engine_->Release(unit); !s.ok()) return s;
  }
  return absl::OkStatus();
}

StatusOr<StepReport> ZeroHoldTrainer::Step(int64_t step) {
  StepReport report;
  const int64_t last = job_.options.accumulate - 1;
  for (int64_t index = 0; index <= last; ++index) {
    if (Status s = engine_->BeginMicroBatch(1.0, index == last); !s.ok()) return s;
    report.loss += RunMicroBatch(job_, weights_, step, index, *this);
  }
  CheckGradients();
  const StatusOr<StepStats> stats = engine_->Step();
  if (!stats.ok()) return stats.status();
  // After Step, whose waits have a deadline.
  const double micro_batches = static_cast<double>(job_.options.accumulate * job_.world);
  report.loss = SumOverRanks(report.loss) / micro_batches;
  report.grad_norm = stats->grad_norm;
  report.learning_rate = stats->learning_rate;
  report.applied = stats->applied;
  report.loss_scale = stats->loss_scale;
  return report;
}

void ZeroHoldTrainer::CheckGradients() const {
  for (size_t index = 0; index < weights_.size(); ++index) {
    const TensorView view = engine_->Gradient(static_cast<ParameterId>(index));
    if (weights_[index].grad().data_ptr() == view.data) continue;
    throw std::logic_error("the gradient of " + job_.model.parameters()[index].name +
                           " has left the engine's memory");
  }
}

StatusOr<std::string> ZeroHoldTrainer::ParametersHash() {
  constexpr int64_t kChunkElems = int64_t{1} << 20;
  ParameterHash hash;
  std::vector<float> chunk;
  for (const size_t index : job_.model.OrderByName()) {
    const auto id = static_cast<ParameterId>(index);
    const int64_t elems = engine_->Parameter(id).elems;
    for (int64_t begin = 0; begin < elems; begin += kChunkElems) {
      chunk.resize(static_cast<size_t>(std::min(kChunkElems, elems - begin)));
      if (Status s = engine_->Read(id, StateKind::kMaster, begin, chunk); !s.ok()) return s;
      hash.Add(chunk);
    }
  }
  return hash.Hex();
}

InstructionSet InstructionSetOf(const std::string& name) {
  if (name == "baseline") return InstructionSet::kBaseline;
  if (name == "v3") return InstructionSet::kV3;
  if (name == "v4") return InstructionSet::kV4;
  return InstructionSet::kBest;
}

EngineOptions EngineOptionsOf(const Job& job) {
  const Options& o = job.options;
  GroupOptions decaying;
  decaying.learning_rate = o.learning_rate;
  decaying.weight_decay = o.weight_decay;
  GroupOptions others = decaying;
  others.weight_decay = 0;

  EngineOptions options;
  options.zero_stage = o.zero_stage;
  options.max_micro_batches = o.accumulate;
  options.groups = {decaying, others};
  options.schedule = o.Schedule();
  options.clip_grad_norm = o.clip;
  options.bucket_elems = o.bucket_elems;
  options.update_threads = o.update_threads;
  options.instruction_set = InstructionSetOf(o.instruction_set);
  options.trace_path = o.TracePath(job.rank);
  return options;
}

}  // namespace

StatusOr<std::unique_ptr<Trainer>> MakeZeroHoldTrainer(const Job& job, Communicator communicator) {
  std::vector<ParameterSpec> parameters;
  for (size_t index = 0; index < job.model.parameters().size(); ++index) {
    ParameterSpec spec;
    spec.name = job.model.parameters()[index].name;
    spec.shape = job.model.parameters()[index].shape;
    spec.group = job.model.Decays(index) ? 0 : 1;
    parameters.push_back(std::move(spec));
  }
  std::vector<UnitSpec> units;
  for (const ModelUnit& unit : job.model.units()) {
    UnitSpec spec{unit.name, {}, unit.uses};
    for (size_t index = unit.first; index < unit.first + unit.count; ++index) {
      spec.parameters.push_back(parameters[index].name);
    }
    units.push_back(std::move(spec));
  }
  StatusOr<std::unique_ptr<Engine>> engine = Engine::Create(
      EngineOptionsOf(job), {std::move(communicator)}, std::move(parameters), std::move(units));
  if (!engine.ok()) return engine.status();
  auto trainer = std::make_unique<ZeroHoldTrainer>(job, std::move(*engine));
  if (Status s = trainer->Bind(); !s.ok()) return s;
  return trainer;
}

}  // namespace zerohold::train
