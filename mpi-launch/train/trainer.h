// What turns samples into steps: through the engine, or through torch alone (the reference).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "mpi-launch/train/corpus.h"
#include "mpi-launch/train/model.h"
#include "mpi-launch/train/options.h"
#include "zerohold/communicator.h"
#include "zerohold/stats.h"
#include "zerohold/status.h"

namespace zerohold::train {

// The same on every rank.
struct StepReport {
  double loss = 0;  // mean over ranks and micro-batches, nats per byte
  double grad_norm = 0;
  double learning_rate = 0;
  bool applied = true;  // false: skipped, since a gradient was not finite
  double loss_scale = 1;
  int64_t disk_read_bytes = 0;  // optimizer states, of all ranks together
  int64_t disk_written_bytes = 0;
  std::optional<double> evaluation_loss;  // after the step, if it was asked for
};

// All calls are collective and blocking. An exception (torch's, or of a unit that could not be had)
// leaves the ranks apart; a status is the same on all of them.
class Trainer {
 public:
  virtual ~Trainer() = default;
  // Step 1 is the first.
  virtual StatusOr<StepReport> Step(int64_t step) = 0;
  // The mean loss of samples that no step draws, as many as a step has and each time the same.
  virtual StatusOr<double> Evaluate() = 0;
  // XXH3-64 over all fp32 master weights in order of parameter name, in 16 hex digits.
  virtual StatusOr<std::string> ParametersHash() = 0;
  // Of this rank, now; of the engine alone.
  virtual MemoryStats Memory() const { return {}; }
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

// Runs the forward and backward pass of micro-batch `index` of a step, the gradients scaled by
// `scale`; gives its loss, unscaled.
struct MicroBatch {
  int64_t step;
  int64_t index;
  double scale = 1;
};
double RunMicroBatch(const Job& job, const std::vector<torch::Tensor>& weights,
                     const MicroBatch& micro_batch, UnitObserver& observer);

// What Trainer::Evaluate answers: forward passes alone.
double EvaluateLoss(const Job& job, const std::vector<torch::Tensor>& weights,
                    UnitObserver& observer);

// The mean over all micro-batches of all ranks, of which `sum` is this rank's sum. For what is only
// told: its last bits depend on the number of ranks.
double MeanOverMicroBatches(const Job& job, double sum);

// The same on every rank; after Step, whose waits have a deadline.
int64_t SumOverRanks(int64_t count);

}  // namespace zerohold::train
