// The engine: holds a model's parameters, gradients and optimizer states over the ranks of a job
// and runs the optimizer step. The order of calls in one step of a trainer:
//
//   BeginMicroBatch()
//   Acquire(u, kForward)  ... forward ...  Release(u)        for every unit, forwards
//   Acquire(u, kBackward) ... backward ... GradReady(u), Release(u)     backwards
//   Step()
//
// Threads: any thread may call, one call at a time; who comes meanwhile is refused
// (FailedPrecondition), but for look-ups, which wait for nothing. A forked child has none of the
// engine's memory, and every call there but a look-up is FailedPrecondition. Collective calls are
// made by all ranks in the same order. A call that fails with the caller's mistake has changed
// nothing. A call that fails because a peer did (Aborted, DeadlineExceeded, Cancelled), a Step or
// an Acquire that fails because a disk did, and one that this system gives no memory for, leave the
// engine failed for good: every later call gives the same status.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "zerohold/communicator.h"
#include "zerohold/export.h"
#include "zerohold/options.h"
#include "zerohold/stats.h"
#include "zerohold/status.h"
#include "zerohold/tensor.h"

namespace zerohold {

// What a unit is acquired for. kEvaluate is a forward pass that no backward pass follows; kWrite
// lets the trainer write its own parameters (first values, loaded weights): a master becomes what
// was written, widened; Write(kMaster) gives it exactly.
enum class AcquireMode : uint8_t { kForward, kBackward, kEvaluate, kWrite };

// A state of a parameter that Read and Write reach. kGradient is the reduced one of the last step.
enum class StateKind : uint8_t { kMaster, kMoment1, kMoment2, kGradient };

class ZH_EXPORT Engine {
 public:
  // Compares options, parameters and units over the ranks, lays the model out over them, and
  // allocates everything a step needs. All values start at zero: write the first ones under
  // Acquire(kWrite). Collective, blocking. Errors: InvalidArgument naming the field, parameter or
  // unit; FailedPrecondition naming the first difference between two ranks, a folder of
  // nvme_paths that lies in memory, or a communicator that another engine has; NotFound or
  // PermissionDenied naming a folder of nvme_paths; ResourceExhausted with asked, available and the
  // setting; Unavailable for what this system refuses; the same on all ranks.
  //
  // communicators[0] is of all ranks of the engine: over it options are compared, and a step's
  // norm, verdict and failures agreed. A parameter is sharded, reduced and compared over the one
  // that ParameterSpec::communicator names, [0] or some ranks of it. What other ranks list may
  // differ (experts, pipeline stages), but not how many: SelfCommunicator() stands for one that a
  // rank has no part in. Ranks that share several communicators list them, and the units and
  // parameters, in a unit too, in the same order; uses of what others do not list change no order
  // of units that hold what is shared in any (see UnitSpec::uses).
  static StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                  std::vector<Communicator> communicators,
                                                  std::vector<ParameterSpec> parameters,
                                                  std::vector<UnitSpec> units);
  // Closes without a report if Close was not called.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Views of a parameter's compute copy and of its gradient; the gradient of a frozen parameter has
  // a null address. Not collective, not blocking. Requires: 0 <= id < the number of parameters.
  TensorView Parameter(ParameterId id) const;
  TensorView Gradient(ParameterId id) const;
  // NotFound naming the name.
  StatusOr<ParameterId> FindParameter(std::string_view name) const;
  StatusOr<UnitId> FindUnit(std::string_view name) const;

  // Opens a micro-batch and closes the one before. In the last one of a step (`last`), reductions
  // start under the backward pass as units report. A Step without a last one is the flush of a
  // partial window: the mean divides by the micro-batches really seen. Not collective by itself,
  // but all ranks open the same number before a Step. `weight` counts for kWeightedMean, 2^-64 to
  // 2^64; gradients are multiplied by it in fp32. Errors: InvalidArgument for a weight that is not
  // 1 without it, FailedPrecondition beyond max_micro_batches or behind a last one.
  Status BeginMicroBatch(double weight = 1.0, bool last = true);

  // Between the two the unit's parameters are there. The first kBackward of a step (of each
  // micro-batch at stages 2 and 3, and in 16-bit types) zeroes the unit's gradients; the trainer
  // adds to them, never overwrites. Micro-batches sum in fp32.
  // After kWrite, Release adopts what the trainer wrote; ranks must have written the same, and the
  // next Step refuses if they did not. Nests and counts. Blocking until the parameters are there.
  // At stage 3 every rank acquires and releases the same units in the same order, all of them for
  // evaluation or none.
  // Errors: InvalidArgument for an unknown unit, FailedPrecondition naming the unit for a Release
  // without Acquire, a kBackward outside a micro-batch, or a kWrite inside one; ResourceExhausted
  // naming max_live_parameters_bytes or max_live_gradients_bytes, or what this system has not got;
  // at stage 3 those of a disk. A Release that is forgotten is an error at stage 3 alone, in Step:
  // elsewhere parameters stay where they are.
  Status Acquire(UnitId unit, AcquireMode mode);
  Status Release(UnitId unit);

  // The unit's gradients are final for this micro-batch; at most once in it, after
  // Acquire(kBackward). Does not block, but without MPI_THREAD_MULTIPLE collectives may run inside
  // it. A unit that no rank reports in a window keeps its parameters, its states and its own step
  // count; one that some ranks report counts as zero on the others.
  Status GradReady(UnitId unit);
  // Instead of GradReady: this rank has no gradients of the unit in this micro-batch. Whoever says
  // nothing means the same, but is believed only at the next BeginMicroBatch or Step: reductions of
  // the unit, and of those before it in the list, wait until then. At stage 3 others may wait for
  // them in Acquire, so call it there for every unit that some rank may report, where they report
  // it. This rank gives them its shard all the same:
  //   Acquire(unit, kForward); GradAbsent(unit); Release(unit);    // where others are in backward
  // Refused after a kBackward. Blocks for a step alone that goes on (overlap_next_forward).
  Status GradAbsent(UnitId unit);

  // Replaces a group's hyper-parameters from the next Step on; the same on all ranks, else that
  // Step refuses. Not collective, not blocking. Errors: InvalidArgument naming the group or field.
  Status SetGroup(int group, const GroupOptions& options);

  // What the trainer multiplies the next loss by; 1 unless loss_scale is enabled. The same on all
  // ranks. Not blocking.
  double LossScale() const;

  // Reduces what is left, agrees, clips, updates, gathers. Collective, blocking. A non-finite
  // gradient is no error: nothing changes on any rank and StepStats says so. Errors:
  // FailedPrecondition (no gradients reported, a unit acquired for backward and never reported, at
  // stage 3 one that is still acquired, ranks that disagree): nothing has changed but the
  // gradients, which are gone; those of a disk that failed on any rank since the last Step.
  StatusOr<StepStats> Step();

  // Copies elements [begin, begin + out.size()) of a state, as fp32, to every rank. Collective,
  // blocking, between steps. Errors: InvalidArgument naming parameter and range; FailedPrecondition
  // for a state that a frozen parameter, or the rule, has not got; those of a disk, which end the
  // next Step too.
  Status Read(ParameterId id, StateKind state, int64_t begin, std::span<float> out);
  // The reverse; every rank gives the same values. kGradient cannot be written, nor a parameter of
  // a unit that is acquired, nor a kMoment2 below zero.
  Status Write(ParameterId id, StateKind state, int64_t begin, std::span<const float> values);

  // Returns when nothing of ours is in flight; nothing will be until the next call. Blocking, not
  // collective. Errors: those of a disk that failed on this rank since the last Step, which all
  // ranks hear of in the next one.
  Status Quiesce();

  // The trainer has written parameters outside kWrite: its copies become the masters. Units in
  // frames (stage 3) have none outside an acquire. With overlap_next_forward call Quiesce before
  // writing. Blocking, not collective, between steps; the same on every rank, else the next Step
  // refuses. Errors: FailedPrecondition inside a window.
  Status AdoptParameters();

  // Appends to the model: ids go on from the last, and `groups` are counted behind those there are.
  // New parameters are laid out over the ranks like the first ones, start at zero (write them under
  // Acquire(kWrite)) and count their own steps from 1; new units may use parameters of old ones.
  // Addresses, values, states and step counts of what was there stay as they are. Frames that must
  // grow, and staging, are there twice meanwhile. Collective, blocking, between steps. Errors,
  // after which nothing has changed, the same on all ranks: those of Create; FailedPrecondition
  // inside a window, naming a unit that is acquired, or a parameter that is not what the engine
  // left there.
  Status AddUnits(std::vector<ParameterSpec> parameters, std::vector<UnitSpec> units,
                  std::vector<GroupOptions> groups = {});

  // Changes where states, shards of parameters and reduced gradients rest: folders, budgets and
  // window become what `offload` says, and all goes there, which takes both places meanwhile.
  // Staging never shrinks. No bit changes. Collective, blocking, between steps. Errors, the same on
  // all ranks: those of Create about offload, and AddUnits's FailedPrecondition; then nothing has
  // changed. Unavailable, of a disk that does not answer, may leave the engine failed for good.
  Status Move(const OffloadOptions& offload);

  // Later features; each answers Unimplemented naming itself.
  Status Save(const std::string& directory);
  Status Load(const std::string& directory);

  // Not collective, not blocking.
  MemoryStats Memory() const;
  int64_t TotalElements() const;     // over all parameters, padding and second uses not counted
  std::string DescribePlan() const;  // the step's operations, one a line

  // Ends the threads and writes the trace; memory goes with the engine. Blocking, not collective:
  // its status is this rank's, the first that could not be told before. Reductions of a window that
  // no Step ended are cancelled, and with them the communicator. A second call does nothing.
  Status Close();

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace zerohold
