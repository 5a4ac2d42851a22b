// The ordered list of operations that a step does, built once. ZeRO stage, world and tiers change
// this list, never the interpreter.
//
// Knows the layout; knows no thread, buffer or clock.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "optim/engine/placement.h"
#include "src/layout/layout.h"
#include "zerohold/tensor.h"

namespace zerohold::engine {

// ReduceScatter exchanges one micro-batch's gradients, or the only sum of a step; FinishSum turns
// the running sums of several micro-batches into the mean, without an exchange. Fetch and Store are
// of records that rest on another tier than the one they are updated on; where their gradients rest
// there too, these have a Fetch of their own, for they come to it late.
enum class Verb : uint8_t { kReduceScatter, kFinishSum, kFetch, kUpdate, kStore, kAllGather };
enum class Operand : uint8_t { kGradient, kParameter, kRecord, kRecordGradient };
// When an operation is due: kReduce in every round of reductions, kFinish when the sums of the step
// are complete, both as soon as their unit's gradients are ready; kAhead from the last round on;
// kApply after the agreement's yes.
enum class Phase : uint8_t { kReduce, kFinish, kAhead, kApply };

struct Operation {
  Verb verb;
  Operand operand;
  Phase phase;
  UnitId unit;
  int32_t space;
  int64_t target;  // index of a bucket, or of a record for kFetch, kUpdate, kStore
  int32_t after;   // this earlier operation is done before this one starts; -1 for none
};

// It works on a record, on its own rank alone.
inline bool OfRecord(const Operation& operation) {
  return operation.operand == Operand::kRecord || operation.operand == Operand::kRecordGradient;
}

// Invariants: operations of one lane (step.h) start in the order of the list, on every rank the
// same collectives in the same order; `after` names an earlier entry.
struct StepPlan {
  std::vector<Operation> operations;
};

// The backward pass finishes units from the last to the first, and those whose parameters an
// earlier unit uses with the first of these: that is when they are reduced.
std::vector<UnitId> ReductionOrder(const layout::Layout& layout);

// `finish_sums`: several reductions make one gradient. Where every rank updates everything, reduced
// shards go to all; where each updates its shard, new parameters go to all that keep them.
StepPlan BuildStepPlan(const layout::Layout& layout, bool finish_sums, const Placement& placement);

const char* NameOf(Verb verb);
// "ReduceScatter gradient bucket 3 (block.0)", one line an operation.
std::string ToString(const StepPlan& plan, std::span<const UnitSpec> units);
std::string ToString(const Operation& operation, std::span<const UnitSpec> units);

}  // namespace zerohold::engine
