// The update of a run of elements: one fused pass, chosen once by what it works on and by
// instruction set. All instruction sets give the same bits. Knows no rank, tier, record or stream.
#pragma once

#include <cstdint>

#include "optim/kernels/operands.h"
#include "optim/kernels/update_rule.h"
#include "zerohold/options.h"
#include "zerohold/tensor.h"

namespace zerohold::kernels {

// What an element header says about its rule.
struct RuleFacts {
  const char* name;  // "AdamW"
  bool moment1;      // whether it keeps them
  bool moment2;
  uint32_t reads;  // Settings, besides the learning rate
};

// Null: there is no such rule.
const RuleFacts* FactsOf(UpdateRule rule);

// What one update works on. `master` means nothing where the copy is fp32: that is the master.
struct UpdateShape {
  UpdateRule rule = UpdateRule::kAdamW;
  DType gradient = DType::kFloat32;
  DType copy = DType::kFloat32;
  MasterForm master = MasterForm::kFloat32;
};

// step: the parameter's own count, 1 for its first update. gradient_scale multiplies the gradient
// (clipping, unscaling). learning_rate replaces group.learning_rate (the schedule applied).
UpdateConstants MakeConstants(UpdateRule rule, const GroupOptions& group, double learning_rate,
                              int64_t step, double gradient_scale);

// Requires: `set` is kBest or one that Supports says yes to; no remainder beside fp16.
UpdateFunction SelectUpdate(const UpdateShape& shape, InstructionSet set);

// By the CPU's feature flags (and the operating system's saving of the registers), never by vendor.
bool Supports(InstructionSet set);
InstructionSet BestInstructionSet();
const char* NameOf(InstructionSet set);  // "baseline", "v3", "v4", "best"

}  // namespace zerohold::kernels
