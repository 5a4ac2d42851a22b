// The loop over the plan, in numbered steps; see Pump.
#include "optim/engine/step.h"

#include <algorithm>

#include "src/base/check.h"

namespace zerohold::engine {

Step::Step(const StepPlan& plan, int units, StepActions& actions)
    : plan_(plan), actions_(actions), done_(plan.operations.size()), ready_(units) {
  for (size_t i = 0; i < plan.operations.size(); ++i) {
    lanes_[LaneOf(plan.operations[i])].push_back(static_cast<int>(i));
  }
  Reset();
}

Step::LaneId Step::LaneOf(const Operation& operation) {
  if (operation.verb == Verb::kUpdate) return kUpdateLane;
  return operation.phase == Phase::kApply ? kGatherLane : kReductionLane;
}

void Step::Reset() {
  ZH_CHECK(reductions_in_flight_ == 0, reductions_in_flight_);
  std::fill(done_.begin(), done_.end(), 0);
  std::fill(ready_.begin(), ready_.end(), 0);
  for (int lane = 0; lane < kLanes; ++lane) next_in_lane_[lane] = 0;
  next_in_lane_[kReductionLane] = lanes_[kReductionLane].size();  // until a round begins
  present_ = nullptr;
  updates_left_ = lanes_[kUpdateLane].size();
  apply_left_ = updates_left_ + lanes_[kGatherLane].size();
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
  state_ = apply && apply_left_ > 0 ? State::kApplying : State::kFinished;
}

void Step::OperationDone(int index) {
  if (plan_.operations[index].phase == Phase::kApply) {
    MarkApplied(index);
  } else {
    --reductions_in_flight_;
  }
}

void Step::MarkApplied(int index) {
  ZH_CHECK(!done_[index], index);
  done_[index] = 1;
  --apply_left_;
  if (plan_.operations[index].verb == Verb::kUpdate) --updates_left_;
}

bool Step::MayStart(const Operation& operation) const {
  if (operation.phase != Phase::kApply) return ready_[operation.unit] != 0;
  return state_ == State::kApplying && (operation.after < 0 || done_[operation.after]);
}

bool Step::Dropped(const Operation& operation) const {
  switch (operation.phase) {
    case Phase::kReduce:
      return round_ == Round::kFlush;
    case Phase::kFinish:
      return round_ == Round::kAccumulate;
    case Phase::kApply:
      return !(*present_)[operation.space];
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
    if (!Dropped(operation)) {
      if (lane == kReductionLane) ++reductions_in_flight_;
      actions_.StartOperation(index);
    } else if (operation.phase == Phase::kApply) {
      MarkApplied(index);
    }
  }
}

void Step::Pump() {
  // 1. Reductions of units that are ready, in plan order whatever order they became ready in.
  Advance(kReductionLane);
  // 2. Agree, once all reductions are done and the trainer has called Step.
  if (state_ == State::kReducing && requested_ && RoundClosed() && reductions_in_flight_ == 0) {
    state_ = State::kAgreeing;
    actions_.StartAgreement();
  }
  // 3. Updates whose turn it is (none before the agreement).
  Advance(kUpdateLane);
  // 4. Gathers of buckets that are updated.
  Advance(kGatherLane);
  // 5. Drain.
  if (state_ == State::kApplying && apply_left_ == 0) state_ = State::kFinished;
}

}  // namespace zerohold::engine
