// What turns samples into steps: through the engine, or through torch alone (the reference).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "mpi-launch/train/corpus.h"
#include "mpi-launch/train/model.h"
#include "mpi-launch/train/options.h"
#include "zerohold/communicator.h"
#include "zerohold/status.h"

namespace zerohold::train {

// The same on every rank.
struct StepReport {
  double loss = 0;  // mean over ranks and micro-batches, nats per byte
  double grad_norm = 0;
  double learning_rate = 0;
  bool applied = true;
  double loss_scale = 1;
};

// All calls are collective and blocking. An exception (torch's, or of a unit that could not be had)
// leaves the ranks apart; a status is the same on all of them.
class Trainer {
 public:
  virtual ~Trainer() = default;
  // Step 1 is the first.
  virtual StatusOr<StepReport> Step(int64_t step) = 0;
  // XXH3-64 over all fp32 master weights in order of parameter name, in 16 hex digits.
  virtual StatusOr<std::string> ParametersHash() = 0;
  virtual Status Close() = 0;
};

// What a trainer is made from; outlives it.
struct Job {
  const Options& options;
  const Corpus& corpus;
  const Model& model;
  int rank;
  int world;
};

StatusOr<std::unique_ptr<Trainer>> MakeZeroHoldTrainer(const Job& job, Communicator communicator);
StatusOr<std::unique_ptr<Trainer>> MakeTorchTrainer(const Job& job);

// Runs the forward and backward pass of micro-batch `index` of the step; gives its loss.
double RunMicroBatch(const Job& job, const std::vector<torch::Tensor>& weights, int64_t step,
                     int64_t index, UnitObserver& observer);

// The sum over all ranks of MPI_COMM_WORLD, for what is only logged.
double SumOverRanks(double mine);

}  // namespace zerohold::train
