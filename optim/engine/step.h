// The interpreter of a step's plan: a state machine without a thread, a clock or a buffer. The
// engine thread pumps it; tests pump it with completions in any order.
//
// Reductions come in rounds: one for the step, or one for each micro-batch. A round that
// accumulates runs the kReduce operations; the final one the kFinish ones too, right behind them; a
// flush those alone. Records that rest elsewhere are fetched from the last round on, as many at a
// time as the window has slots, in the order of their updates; what was fetched for nothing (a
// skip, an absent gradient) is dropped unwritten.
//
// Threads: one owner. Invariants:
//  1. An operation starts once in a round (kApply: in a step), when all that it waits for is done,
//     and in its lane in the plan's order.
//  2. The agreement starts when the last round is done and Step was called; no kApply operation
//     starts before its verdict.
//  3. Updates, stores and gathers of flat spaces that no rank has a gradient for count as done
//     without starting, as do all of them on a skip.
//  4. Each fetch that starts is followed by one store, or one drop, of its record.
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
  // What was fetched goes unwritten; needs no answer.
  virtual void DropRecord(int64_t record) = 0;
  // The second agreement, where a disk may have failed since the first.
  virtual void StartClosing() = 0;
};

enum class Round : uint8_t { kAccumulate, kFinal, kFlush };

class Step {
 public:
  struct Limits {
    int window = 0;        // records that are fetched, or not yet stored, at a time
    bool closing = false;  // ends with StartClosing
  };
  Step(const StepPlan& plan, int units, const Limits& limits, StepActions& actions);

  // A new window of micro-batches: everything back to the start. Requires: nothing in flight.
  void Reset();
  // A new round of reductions. Requires: the one before is closed.
  void BeginRound(Round round);
  // The unit's gradients are final for this round. Idempotent.
  void UnitReady(UnitId unit);
  // Nothing more will be reported in this round: all units are ready.
  void CloseRound();
  // Step was called. Requires: the final round or the flush has begun, and CloseRound was called.
  void Request() { requested_ = true; }
  // `apply` false drops what is to come; `present` (one per flat space) says which have
  // gradients.
  void AgreementDone(bool apply, const std::vector<uint8_t>& present);
  void OperationDone(int index);
  void ClosingDone() { state_ = State::kFinished; }

  // The unit's gradients are final in this round.
  bool Ready(UnitId unit) const { return ready_[unit] != 0; }

  // Starts all that may start now.
  void Pump();

  enum class State : uint8_t { kReducing, kAgreeing, kApplying, kClosing, kFinished };
  State state() const { return state_; }
  // Nothing of this step is left to be done to the unit's parameters.
  bool Applied(UnitId unit) const { return state_ != State::kApplying || left_of_unit_[unit] == 0; }

 private:
  enum LaneId {
    kReductionLane,
    kFetchLane,
    kGradientLane,  // fetches
    kUpdateLane,
    kStoreLane,
    kGatherLane,
    kLanes
  };
  // A stream's queue is finite, and who fills it must not wait for it.
  static constexpr size_t kMaxUpdatesInFlight = 64;

  static LaneId LaneOf(const Operation& operation);
  bool RoundClosed() const {
    return next_in_lane_[kReductionLane] == lanes_[kReductionLane].size();
  }
  bool MayStart(const Operation& operation) const;
  bool Dropped(const Operation& operation) const;
  void Advance(LaneId lane);
  void Start(LaneId lane, int index);
  void Drop(LaneId lane, int index);
  void MarkDone(int index);

  const StepPlan& plan_;
  const Limits limits_;
  StepActions& actions_;
  std::vector<int> lanes_[kLanes];                 // indexes into the plan
  size_t next_in_lane_[kLanes];                    // first that has not started
  std::vector<uint8_t> done_;                      // kAhead and kApply operations
  std::vector<uint8_t> fetched_;                   // kAhead operations that were started
  std::vector<uint8_t> ready_;                     // units, in this round
  const std::vector<uint8_t>* present_ = nullptr;  // once agreed
  bool apply_ = false;
  Round round_ = Round::kAccumulate;
  int64_t reductions_in_flight_ = 0;
  int in_window_ = 0;                  // records fetched, being fetched, or not yet stored
  size_t left_ = 0;                    // kAhead and kApply operations
  std::vector<int64_t> left_of_unit_;  // of them
  size_t updates_left_ = 0;
  bool requested_ = false;
  State state_ = State::kReducing;
};

}  // namespace zerohold::engine
