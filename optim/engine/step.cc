// The loop over the plan, in numbered steps; see Pump.
#include "optim/engine/step.h"

#include <algorithm>

#include "src/base/check.h"

namespace zerohold::engine {

Step::Step(const StepPlan& plan, int units, const Limits& limits, StepActions& actions)
    : plan_(plan),
      limits_(limits),
      actions_(actions),
      done_(plan.operations.size()),
      fetched_(plan.operations.size()),
      ready_(units),
      left_of_unit_(units) {
  for (size_t i = 0; i < plan.operations.size(); ++i) {
    lanes_[LaneOf(plan.operations[i])].push_back(static_cast<int>(i));
  }
  Reset();
}

Step::LaneId Step::LaneOf(const Operation& operation) {
  if (operation.verb == Verb::kFetch) {
    return operation.phase == Phase::kAhead ? kFetchLane : kGradientLane;
  }
  if (operation.verb == Verb::kUpdate) return kUpdateLane;
  if (operation.verb == Verb::kStore) return kStoreLane;
  return operation.phase == Phase::kApply ? kGatherLane : kReductionLane;
}

void Step::Reset() {
  ZH_CHECK(reductions_in_flight_ == 0 && in_window_ == 0, reductions_in_flight_, in_window_);
  std::fill(done_.begin(), done_.end(), 0);
  std::fill(fetched_.begin(), fetched_.end(), 0);
  std::fill(ready_.begin(), ready_.end(), 0);
  for (int lane = 0; lane < kLanes; ++lane) next_in_lane_[lane] = 0;
  next_in_lane_[kReductionLane] = lanes_[kReductionLane].size();  // until a round begins
  present_ = nullptr;
  round_ = Round::kAccumulate;
  updates_left_ = lanes_[kUpdateLane].size();
  left_ = plan_.operations.size() - lanes_[kReductionLane].size();
  std::fill(left_of_unit_.begin(), left_of_unit_.end(), 0);
  for (const Operation& operation : plan_.operations) {
    if (LaneOf(operation) != kReductionLane) ++left_of_unit_[operation.unit];
  }
  requested_ = false;
  state_ = State::kReducing;
}

void Step::BeginRound(Round round) {
  ZH_CHECK(RoundClosed());
  round_ = round;
  next_in_lane_[kReductionLane] = 0;
  std::fill(ready_.begin(), ready_.end(), 0);
}

void Step::UnitReady(UnitId unit) { ready_[unit] = 1; }

void Step::CloseRound() {
  std::fill(ready_.begin(), ready_.end(), 1);
  Advance(kReductionLane);
}

void Step::AgreementDone(bool apply, const std::vector<uint8_t>& present) {
  ZH_CHECK(state_ == State::kAgreeing);
  present_ = &present;
  apply_ = apply;
  state_ = State::kApplying;
}

void Step::OperationDone(int index) {
  const Operation& operation = plan_.operations[index];
  if (LaneOf(operation) == kReductionLane) {
    --reductions_in_flight_;
    return;
  }
  MarkDone(index);
  if (operation.verb == Verb::kStore) --in_window_;
}

void Step::MarkDone(int index) {
  ZH_CHECK(!done_[index], index);
  done_[index] = 1;
  --left_;
  --left_of_unit_[plan_.operations[index].unit];
  if (plan_.operations[index].verb == Verb::kUpdate) --updates_left_;
}

bool Step::MayStart(const Operation& operation) const {
  switch (operation.phase) {
    case Phase::kReduce:
    case Phase::kFinish:
      return ready_[operation.unit] != 0;
    case Phase::kAhead:
      return round_ != Round::kAccumulate && (in_window_ < limits_.window || Dropped(operation));
    case Phase::kApply:
      return state_ == State::kApplying && (operation.after < 0 || done_[operation.after]);
  }
  return false;
}

bool Step::Dropped(const Operation& operation) const {
  switch (operation.phase) {
    case Phase::kReduce:
      return round_ == Round::kFlush;
    case Phase::kFinish:
      return round_ == Round::kAccumulate;
    case Phase::kAhead:
    case Phase::kApply:
      return present_ != nullptr && !(apply_ && (*present_)[operation.space]);
  }
  return false;
}

void Step::Advance(LaneId lane) {
  const std::vector<int>& order = lanes_[lane];
  for (size_t& next = next_in_lane_[lane]; next < order.size(); ++next) {
    const int index = order[next];
    const Operation& operation = plan_.operations[index];
    if (!MayStart(operation)) return;
    const size_t updates_done = lanes_[kUpdateLane].size() - updates_left_;
    if (lane == kUpdateLane && next - updates_done >= kMaxUpdatesInFlight) return;
    Dropped(operation) ? Drop(lane, index) : Start(lane, index);
  }
}

void Step::Start(LaneId lane, int index) {
  if (lane == kReductionLane) ++reductions_in_flight_;
  if (lane == kFetchLane) {
    ++in_window_;
    fetched_[index] = 1;
  }
  actions_.StartOperation(index);
}

void Step::Drop(LaneId lane, int index) {
  if (lane == kReductionLane) return;
  MarkDone(index);
  if (lane != kStoreLane) return;
  // The first of the record's operations.
  int fetch = index;
  while (plan_.operations[fetch].after >= 0) fetch = plan_.operations[fetch].after;
  if (!fetched_[fetch]) return;
  --in_window_;
  actions_.DropRecord(plan_.operations[index].target);
}

void Step::Pump() {
  // 1. Reductions of units that are ready, in plan order whatever order they became ready in.
  Advance(kReductionLane);
  // 2. Agree, once all reductions are done and the trainer has called Step.
  if (state_ == State::kReducing && requested_ && RoundClosed() && reductions_in_flight_ == 0) {
    state_ = State::kAgreeing;
    actions_.StartAgreement();
  }
  // 3. Fetches, in plan order, as far as the window has room (those that are dropped need none).
  Advance(kFetchLane);
  // 4. Updates whose turn it is (none before the agreement), the stores behind them, and fetches
  // into the room that drops leave.
  Advance(kGradientLane);
  Advance(kUpdateLane);
  Advance(kStoreLane);
  Advance(kFetchLane);
  // 5. Gathers of buckets that are updated.
  Advance(kGatherLane);
  // 6. Drain.
  if (state_ != State::kApplying || left_ > 0) return;
  state_ = limits_.closing ? State::kClosing : State::kFinished;
  if (limits_.closing) actions_.StartClosing();
}

}  // namespace zerohold::engine
