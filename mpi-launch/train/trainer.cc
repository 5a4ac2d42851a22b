#include "mpi-launch/train/trainer.h"

#include <mpi.h>
#include <torch/csrc/autograd/autograd.h>

namespace zerohold::train {

namespace {

// Of the micro-batches with one index, those of all ranks lie together in the global batch.
torch::Tensor LossOf(const Job& job, const std::vector<torch::Tensor>& weights,
                     const MicroBatch& micro_batch, UnitObserver& observer) {
  const int64_t first = (micro_batch.index * job.world + job.rank) * job.options.micro_batch;
  const Batch batch = SampleBatch(job.corpus, job.options, micro_batch.step, first);
  return job.model.Loss(weights, batch, observer);
}

}  // namespace

double RunMicroBatch(const Job& job, const std::vector<torch::Tensor>& weights,
                     const MicroBatch& micro_batch, UnitObserver& observer) {
  const torch::Tensor loss = LossOf(job, weights, micro_batch, observer);
  torch::autograd::backward({loss}, {torch::full_like(loss, micro_batch.scale)});
  return loss.item<double>();
}

double EvaluateLoss(const Job& job, const std::vector<torch::Tensor>& weights,
                    UnitObserver& observer) {
  const torch::NoGradGuard no_graph;
  constexpr int64_t kStep = 0;  // the first to train is 1
  double sum = 0;
  for (int64_t index = 0; index < job.options.accumulate; ++index) {
    sum += LossOf(job, weights, {kStep, index}, observer).item<double>();
  }
  return MeanOverMicroBatches(job, sum);
}

double MeanOverMicroBatches(const Job& job, double sum) {
  MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return sum / static_cast<double>(job.options.accumulate * job.world);
}

int64_t SumOverRanks(int64_t count) {
  MPI_Allreduce(MPI_IN_PLACE, &count, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
  return count;
}

}  // namespace zerohold::train
