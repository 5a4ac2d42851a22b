// The interpreter of a step's plan: a state machine without a thread, a clock or a buffer. The
// engine thread pumps it; tests pump it with completions in any order.
//
// Threads: one owner.
// Invariants:
//  1. An operation starts once, and only when all that it waits for is done; of one lane, in plan
//  order.
//  2. The agreement starts when every kReduce operation is done and Step was called; no kApply
//  operation
//     starts before its verdict.
//  3. Operations of units that no rank has a gradient for count as done without starting.
#pragma once

#include <cstdint>
#include <vector>

#include "optim/engine/step_plan.h"

namespace zerohold::engine {

// Starts what the interpreter asks for. Each start is answered later by exactly one OperationDone
// or AgreementDone, never from inside the start.
class StepActions {
 public:
  virtual ~StepActions() = default;
  virtual void StartOperation(int index) = 0;
  virtual void StartAgreement() = 0;
};

class Step {
 public:
  Step(const StepPlan& plan, int units, StepActions& actions);

  // A new window of micro-batches: everything back to the start.
  void Reset();
  // The unit's gradients are final for this window. Idempotent.
  void UnitReady(UnitId unit);
  // Step was called: all units are ready.
  void Request();
  // `apply` false drops the kApply operations; `present` (one per unit) says which units have
  // gradients.
  void AgreementDone(bool apply, const std::vector<uint8_t>& present);
  void OperationDone(int index);

  // Starts all that may start now.
  void Pump();

  enum class State : uint8_t { kReducing, kAgreeing, kApplying, kFinished };
  State state() const { return state_; }
  bool updates_done() const { return done_in_lane_[kUpdateLane] == lanes_[kUpdateLane].size(); }

 private:
  enum LaneId { kCollectiveLane, kUpdateLane, kLanes };
  static LaneId LaneOf(const Operation& operation);
  bool MayStart(const Operation& operation) const;
  void Advance(LaneId lane);
  void MarkDone(int index);

  const StepPlan& plan_;
  StepActions& actions_;
  std::vector<int> lanes_[kLanes];  // indexes into the plan
  size_t next_in_lane_[kLanes];     // first that has not started
  size_t done_in_lane_[kLanes];
  std::vector<uint8_t> done_;
  std::vector<uint8_t> ready_;
  const std::vector<uint8_t>* present_ = nullptr;
  size_t reductions_left_ = 0;
  size_t reductions_ = 0;
  size_t left_ = 0;
  bool requested_ = false;
  State state_ = State::kReducing;
};

}  // namespace zerohold::engine
