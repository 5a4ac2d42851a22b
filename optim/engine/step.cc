// The loop over the plan, in numbered steps; see Pump.
#include "optim/engine/step.h"

#include <algorithm>

#include "src/base/check.h"

namespace zerohold::engine {

Step::Step(const StepPlan& plan, int units, StepActions& actions)
    : plan_(plan), actions_(actions), done_(plan.operations.size()), ready_(units) {
  for (size_t i = 0; i < plan.operations.size(); ++i) {
    const Operation& operation = plan.operations[i];
    lanes_[LaneOf(operation)].push_back(static_cast<int>(i));
    if (operation.phase == Phase::kReduce) ++reductions_;
  }
  Reset();
}

Step::LaneId Step::LaneOf(const Operation& operation) {
  return operation.verb == Verb::kUpdate ? kUpdateLane : kCollectiveLane;
}

void Step::Reset() {
  std::fill(done_.begin(), done_.end(), 0);
  std::fill(ready_.begin(), ready_.end(), 0);
  std::fill(std::begin(next_in_lane_), std::end(next_in_lane_), 0);
  std::fill(std::begin(done_in_lane_), std::end(done_in_lane_), 0);
  present_ = nullptr;
  reductions_left_ = reductions_;
  left_ = plan_.operations.size();
  requested_ = false;
  state_ = State::kReducing;
}

void Step::UnitReady(UnitId unit) { ready_[unit] = 1; }

void Step::Request() {
  std::fill(ready_.begin(), ready_.end(), 1);
  requested_ = true;
}

void Step::AgreementDone(bool apply, const std::vector<uint8_t>& present) {
  ZH_CHECK(state_ == State::kAgreeing);
  present_ = &present;
  state_ = apply && left_ > 0 ? State::kApplying : State::kFinished;
}

void Step::OperationDone(int index) { MarkDone(index); }

void Step::MarkDone(int index) {
  ZH_CHECK(!done_[index], index);
  const Operation& operation = plan_.operations[index];
  done_[index] = 1;
  ++done_in_lane_[LaneOf(operation)];
  if (operation.phase == Phase::kReduce) --reductions_left_;
  --left_;
}

bool Step::MayStart(const Operation& operation) const {
  const bool open =
      operation.phase == Phase::kReduce ? ready_[operation.unit] != 0 : state_ == State::kApplying;
  return open && (operation.after < 0 || done_[operation.after]);
}

void Step::Advance(LaneId lane) {
  const std::vector<int>& order = lanes_[lane];
  for (size_t& next = next_in_lane_[lane]; next < order.size(); ++next) {
    const int index = order[next];
    const Operation& operation = plan_.operations[index];
    if (!MayStart(operation)) return;
    const bool dropped = operation.phase == Phase::kApply && !(*present_)[operation.unit];
    if (dropped) {
      MarkDone(index);
    } else {
      actions_.StartOperation(index);
    }
  }
}

void Step::Pump() {
  // 1. Updates whose turn it is (none before the agreement): they feed the gathers of step 2.
  Advance(kUpdateLane);
  // 2. Collectives: reductions of units that are ready, gathers of buckets that are updated.
  Advance(kCollectiveLane);
  // 3. Agree, once all reductions are done and the trainer has called Step.
  if (state_ == State::kReducing && requested_ && reductions_left_ == 0) {
    state_ = State::kAgreeing;
    actions_.StartAgreement();
  }
  // 4. Drain.
  if (state_ == State::kApplying && left_ == 0) state_ = State::kFinished;
}

}  // namespace zerohold::engine
