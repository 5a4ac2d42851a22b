// Trains through the engine: weights and gradients are views of the engine's memory, and autograd
// adds to the gradients in place.
//
// Invariants:
// 1. A unit is acquired for its forward pass, and again when the gradient comes to its output; the
//    second is released by the hook that sees the last of its gradients. So nothing here depends on
//    whether weights are at home between the two.
// 2. `.grad` of a weight is the engine's view from the first step to the last (checked every step).
//    Where torch computes in a wider type than the weight's, stand-ins are what it computes with;
//    they come and go with the unit, and each gradient is rounded into the engine's view as soon as
//    it has arrived.
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
#include "mpi-launch/train/wide_weights.h"
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
  constexpr torch::ScalarType kTypes[] = {torch::kFloat32, torch::kBFloat16, torch::kHalf};
  return torch::from_blob(view.data, {view.shape.data(), view.shape.size()},
                          kTypes[static_cast<int>(view.dtype)]);
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
  ZeroHoldTrainer(const Job& job, std::unique_ptr<Engine> engine);

  // Writes the first values and hooks the gradients.
  Status Bind();

  StatusOr<StepReport> Step(int64_t step) override;
  StatusOr<double> Evaluate() override;
  StatusOr<std::string> ParametersHash() override;
  MemoryStats Memory() const override { return engine_->Memory(); }
  Status Close() override { return engine_->Close(); }

 private:
  void BeforeForward(int unit) override {
    Require(engine_->Acquire(unit, forward_));
    Attach(unit);
  }
  void AfterForward(int unit) override {
    Detach(unit);
    Require(engine_->Release(unit));
  }
  void BeforeBackward(int unit) override {
    missing_[unit] = job_.model.units()[unit].count;
    Require(engine_->Acquire(unit, AcquireMode::kBackward));
    Attach(unit);
  }
  void GradientArrived(int unit, size_t parameter);

  // The stand-ins of all that the unit reads.
  void Attach(int unit) {
    for (const size_t parameter : reads_[unit]) wide_.Attach(parameter);
  }
  void Detach(int unit) {
    for (const size_t parameter : reads_[unit]) wide_.Detach(parameter);
  }
  const std::vector<Tensor>& Leaves() const { return is_wide_ ? wide_.leaves() : weights_; }
  void CheckGradients() const;

  const Job job_;
  std::unique_ptr<Engine> engine_;
  AcquireMode forward_ = AcquireMode::kForward;
  std::vector<Tensor> weights_;    // views of the engine's memory
  std::vector<Tensor> gradients_;  // the same
  const bool is_wide_;
  WideWeights wide_;                        // empty unless is_wide_
  std::vector<std::vector<size_t>> reads_;  // parameters by unit, its own and used; as wide_
  std::vector<size_t> missing_;  // gradients that each unit still waits for in this micro-batch
  // Torch holds the accumulators of leaves weakly: ours keep their hooks.
  std::vector<std::shared_ptr<torch::autograd::Node>> accumulators_;
};

ZeroHoldTrainer::ZeroHoldTrainer(const Job& job, std::unique_ptr<Engine> engine)
    : job_(job),
      engine_(std::move(engine)),
      is_wide_(job.model.compute_type() == torch::kFloat32 &&
               job.options.WeightType() != DType::kFloat32),
      reads_(job.model.units().size()),
      missing_(job.model.units().size()) {
  for (size_t index = 0; index < job_.model.parameters().size(); ++index) {
    const auto id = static_cast<ParameterId>(index);
    weights_.push_back(AsTensor(engine_->Parameter(id)));
    gradients_.push_back(AsTensor(engine_->Gradient(id)));
    if (is_wide_) {
      wide_.Add(weights_.back());
    } else {
      weights_.back().requires_grad_().mutable_grad() = gradients_.back();
    }
  }
  for (size_t unit = 0; is_wide_ && unit < reads_.size(); ++unit) {
    const ModelUnit& its = job_.model.units()[unit];
    for (size_t index = its.first; index < its.first + its.count; ++index) {
      reads_[unit].push_back(index);
    }
    for (const std::string& used : its.uses) reads_[unit].push_back(*engine_->FindParameter(used));
  }
}

Status ZeroHoldTrainer::Bind() {
  const std::vector<ModelUnit>& units = job_.model.units();
  for (int unit = 0; unit < static_cast<int>(units.size()); ++unit) {
    if (Status s = engine_->Acquire(unit, AcquireMode::kWrite); !s.ok()) return s;
    for (size_t index = units[unit].first; index < units[unit].first + units[unit].count; ++index) {
      job_.model.Initialize(index, job_.options.seed, weights_[index]);
      accumulators_.push_back(torch::autograd::impl::grad_accumulator(Leaves()[index]));
      accumulators_.back()->add_post_hook(
          std::make_unique<AfterAccumulate>([this, unit, index] { GradientArrived(unit, index); }));
    }
    if (Status s = engine_->Release(unit); !s.ok()) return s;
  }
  return absl::OkStatus();
}

void ZeroHoldTrainer::GradientArrived(int unit, size_t parameter) {
  if (is_wide_) wide_.MoveGradient(parameter, gradients_[parameter]);
  if (--missing_[unit] > 0) return;
  Detach(unit);
  Require(engine_->GradReady(unit));
  Require(engine_->Release(unit));
}

StatusOr<StepReport> ZeroHoldTrainer::Step(int64_t step) {
  StepReport report;
  const int64_t last = job_.options.accumulate - 1;
  for (int64_t index = 0; index <= last; ++index) {
    if (Status s = engine_->BeginMicroBatch(1.0, index == last); !s.ok()) return s;
    report.loss += RunMicroBatch(job_, Leaves(), {step, index, engine_->LossScale()}, *this);
  }
  CheckGradients();
  const StatusOr<StepStats> stats = engine_->Step();
  if (!stats.ok()) return stats.status();
  report.loss = MeanOverMicroBatches(job_, report.loss);  // after Step, whose waits have a deadline
  report.grad_norm = stats->grad_norm;
  report.learning_rate = stats->learning_rate;
  report.applied = stats->applied;
  report.loss_scale = stats->loss_scale;
  report.disk_read_bytes = SumOverRanks(stats->disk_read_bytes);
  report.disk_written_bytes = SumOverRanks(stats->disk_written_bytes);
  return report;
}

StatusOr<double> ZeroHoldTrainer::Evaluate() {
  forward_ = AcquireMode::kEvaluate;
  const double loss = EvaluateLoss(job_, Leaves(), *this);
  forward_ = AcquireMode::kForward;
  return loss;
}

void ZeroHoldTrainer::CheckGradients() const {
  for (size_t index = 0; index < weights_.size(); ++index) {
    const Tensor& gradient = Leaves()[index].grad();
    if (is_wide_ ? !gradient.defined() : gradient.data_ptr() == gradients_[index].data_ptr()) {
      continue;
    }
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

}  // namespace

StatusOr<std::unique_ptr<Trainer>> MakeZeroHoldTrainer(const Job& job, Communicator communicator) {
  std::vector<ParameterSpec> parameters;
  for (size_t index = 0; index < job.model.parameters().size(); ++index) {
    ParameterSpec spec;
    spec.name = job.model.parameters()[index].name;
    spec.shape = job.model.parameters()[index].shape;
    spec.dtype = job.options.WeightType();
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
  StatusOr<std::unique_ptr<Engine>> engine =
      Engine::Create(job.options.Engine(job.rank), {std::move(communicator)}, std::move(parameters),
                     std::move(units));
  if (!engine.ok()) return engine.status();
  auto trainer = std::make_unique<ZeroHoldTrainer>(job, std::move(*engine));
  if (Status s = trainer->Bind(); !s.ok()) return s;
  return trainer;
}

}  // namespace zerohold::train
