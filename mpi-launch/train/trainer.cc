#include "mpi-launch/train/trainer.h"

#include <mpi.h>
#include <torch/csrc/autograd/autograd.h>

namespace zerohold::train {

double RunMicroBatch(const Job& job, const std::vector<torch::Tensor>& weights, int64_t step,
                     int64_t index, UnitObserver& observer) {
  // Micro-batch `index` of all ranks lies together in the global batch.
  const int64_t first = (index * job.world + job.rank) * job.options.micro_batch;
  const Batch batch = SampleBatch(job.corpus, job.options, step, first);
  const torch::Tensor loss = job.model.Loss(weights, batch, observer);
  torch::autograd::backward({loss}, {});
  return loss.item<double>();
}

double SumOverRanks(double mine) {
  double sum = 0;
  MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return sum;
}

}  // namespace zerohold::train
