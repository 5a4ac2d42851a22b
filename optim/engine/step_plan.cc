// Builds and prints the plan of a step.
#include "optim/engine/step_plan.h"

#include <algorithm>
#include <numeric>

namespace zerohold::engine {

const char* NameOf(Verb verb) {
  constexpr const char* kNames[] = {"ReduceScatter", "FinishSum", "Fetch",
                                    "Update",        "Store",     "AllGather"};
  return kNames[static_cast<int>(verb)];
}

std::vector<UnitId> ReductionOrder(const layout::Layout& layout) {
  std::vector<UnitId> order(layout.units().size());
  std::iota(order.rbegin(), order.rend(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(),
                           [&](UnitId unit) { return layout.units()[unit].first_touch; });
  return order;
}

namespace {

void PlanReductions(const layout::Layout& layout, bool finish_sums, int32_t index, StepPlan& plan) {
  const layout::FlatSpace& space = layout.spaces()[index];
  if (space.frozen) return;
  const bool gather = !layout.config().shard_update && layout.MembershipIn(index).world > 1;
  for (int64_t i = 0; i < space.bucket_count; ++i) {
    const auto add = [&](Verb verb, Phase phase) {
      plan.operations.push_back(
          {verb, Operand::kGradient, phase, space.unit, index, space.first_bucket + i, -1});
    };
    add(Verb::kReduceScatter, Phase::kReduce);
    if (finish_sums) add(Verb::kFinishSum, Phase::kFinish);
    if (gather) add(Verb::kAllGather, Phase::kFinish);
  }
}

// In forward order, so that what the next forward pass needs first is ready first. Returns, for
// each record, the index of its update.
std::vector<int32_t> PlanUpdates(const layout::Layout& layout, const Placement& placement,
                                 StepPlan& plan) {
  std::vector<int32_t> updates;
  const auto records = layout.records();
  for (size_t i = 0; i < records.size(); ++i) {
    const UnitId unit = layout.spaces()[records[i].space].unit;
    int32_t last = -1;
    const auto add = [&](Verb verb, Operand operand, Phase phase) {
      plan.operations.push_back(
          {verb, operand, phase, unit, records[i].space, static_cast<int64_t>(i), last});
      last = static_cast<int32_t>(plan.operations.size()) - 1;
    };
    if (placement.fetched[i]) add(Verb::kFetch, Operand::kRecord, Phase::kAhead);
    if (placement.gradients[records[i].space]) {
      add(Verb::kFetch, Operand::kRecordGradient, Phase::kApply);
    }
    add(Verb::kUpdate, Operand::kRecord, Phase::kApply);
    updates.push_back(last);
    if (placement.fetched[i]) add(Verb::kStore, Operand::kRecord, Phase::kApply);
  }
  return updates;
}

// A bucket goes out when the last of this rank's records that touch it is updated. Records and
// buckets both ascend, so one walk finds them.
void PlanGathers(const layout::Layout& layout, const std::vector<int32_t>& updates,
                 StepPlan& plan) {
  const auto records = layout.records();
  size_t next = 0;
  int32_t after = -1;
  for (int64_t i = 0; i < layout.bucket_count(); ++i) {
    const layout::Bucket bucket = layout.BucketAt(i);
    const layout::FlatSpace& space = layout.spaces()[bucket.space];
    if (space.frozen) continue;
    while (next < records.size() &&
           (records[next].space < bucket.space ||
            (records[next].space == bucket.space &&
             records[next].pieces.front().range.begin < bucket.range.end))) {
      after = updates[next++];
    }
    if (layout.units()[space.unit].parameters_framed) continue;  // gathered when acquired
    if (layout.MembershipIn(bucket.space).world == 1) continue;
    plan.operations.push_back(
        {Verb::kAllGather, Operand::kParameter, Phase::kApply, space.unit, bucket.space, i, after});
  }
}

}  // namespace

StepPlan BuildStepPlan(const layout::Layout& layout, bool finish_sums, const Placement& placement) {
  StepPlan plan;
  for (const UnitId id : ReductionOrder(layout)) {
    const layout::UnitPlace& unit = layout.units()[id];
    for (int space = unit.last_space - 1; space >= unit.first_space; --space) {
      PlanReductions(layout, finish_sums, space, plan);
    }
  }
  const std::vector<int32_t> updates = PlanUpdates(layout, placement, plan);
  if (layout.config().shard_update) PlanGathers(layout, updates, plan);
  return plan;
}

std::string ToString(const Operation& operation, std::span<const UnitSpec> units) {
  std::string text = NameOf(operation.verb);
  constexpr const char* kOperands[] = {" gradient bucket ", " parameter bucket ", " record ",
                                       " gradients of record "};
  text += kOperands[static_cast<int>(operation.operand)];
  text += std::to_string(operation.target) + " (" + units[operation.unit].name + ")";
  return text;
}

std::string ToString(const StepPlan& plan, std::span<const UnitSpec> units) {
  std::string text;
  for (const Operation& operation : plan.operations) text += ToString(operation, units) + "\n";
  return text;
}

}  // namespace zerohold::engine
