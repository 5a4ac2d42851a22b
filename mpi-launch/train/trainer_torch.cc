// The reference: no engine. Gradients are summed by MPI_Allreduce, clipped and applied by torch.
#include <mpi.h>
#include <torch/nn/module.h>  // clip_grad.h leans on it
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/adamw.h>

#include <limits>
#include <utility>
#include <vector>

#include "mpi-launch/train/parameter_hash.h"
#include "mpi-launch/train/trainer.h"
#include "zerohold/schedule.h"

namespace zerohold::train {
namespace {

using torch::Tensor;

class TorchTrainer : public Trainer {
 public:
  explicit TorchTrainer(const Job& job)
      : job_(job),
        weights_(FirstValues(job)),
        adamw_(Groups(job, weights_), Settings(job.options.Group(false))) {}

  StatusOr<StepReport> Step(int64_t step) override {
    StepReport report;
    UnitObserver nobody;
    for (int64_t index = 0; index < job_.options.accumulate; ++index) {
      report.loss += RunMicroBatch(job_, weights_, {step, index}, nobody);
    }
    report.loss = MeanOverMicroBatches(job_, report.loss);
    const double micro_batches = static_cast<double>(job_.options.accumulate * job_.world);
    for (const Tensor& weight : weights_) {
      Tensor gradient = weight.grad();
      MPI_Allreduce(MPI_IN_PLACE, gradient.data_ptr<float>(), static_cast<int>(gradient.numel()),
                    MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      gradient.div_(micro_batches);
    }
    const double limit =
        job_.options.clip > 0 ? job_.options.clip : std::numeric_limits<double>::infinity();
    report.grad_norm = torch::nn::utils::clip_grad_norm_(weights_, limit);
    report.learning_rate =
        job_.options.learning_rate * LearningRateFactor(job_.options.Schedule(), step);
    for (auto& group : adamw_.param_groups()) {
      static_cast<torch::optim::AdamWOptions&>(group.options()).lr(report.learning_rate);
    }
    adamw_.step();
    adamw_.zero_grad();
    return report;
  }

  StatusOr<double> Evaluate() override {
    UnitObserver nobody;
    return EvaluateLoss(job_, weights_, nobody);
  }

  StatusOr<std::string> ParametersHash() override {
    ParameterHash hash;
    for (const size_t index : job_.model.OrderByName()) {
      const Tensor& weight = weights_[index];
      hash.Add({weight.data_ptr<float>(), static_cast<size_t>(weight.numel())});
    }
    return hash.Hex();
  }

  Status Close() override { return absl::OkStatus(); }

 private:
  static std::vector<Tensor> FirstValues(const Job& job) {
    std::vector<Tensor> weights;
    for (size_t index = 0; index < job.model.parameters().size(); ++index) {
      Tensor weight = torch::empty(job.model.parameters()[index].shape);
      job.model.Initialize(index, job.options.seed, weight);
      weights.push_back(weight.requires_grad_());
    }
    return weights;
  }

  static std::vector<torch::optim::OptimizerParamGroup> Groups(const Job& job,
                                                               const std::vector<Tensor>& weights) {
    std::vector<Tensor> decaying, others;
    for (size_t index = 0; index < weights.size(); ++index) {
      (job.model.Decays(index) ? decaying : others).push_back(weights[index]);
    }
    const auto settings = [&job](bool decays) {
      return std::make_unique<torch::optim::AdamWOptions>(Settings(job.options.Group(decays)));
    };
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::move(decaying), settings(true));
    groups.emplace_back(std::move(others), settings(false));
    return groups;
  }

  static torch::optim::AdamWOptions Settings(const GroupOptions& group) {
    return torch::optim::AdamWOptions(group.learning_rate)
        .betas({group.beta1, group.beta2})
        .eps(group.epsilon)
        .weight_decay(group.weight_decay);
  }

  const Job job_;
  std::vector<Tensor> weights_;
  torch::optim::AdamW adamw_;
};

}  // namespace

StatusOr<std::unique_ptr<Trainer>> MakeTorchTrainer(const Job& job) {
  return std::make_unique<TorchTrainer>(job);
}

}  // namespace zerohold::train
