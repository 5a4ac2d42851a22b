// The update of a run of elements: one fused pass, chosen once by rule and instruction set. All
// instruction sets give the same bits. Knows no rank, tier, record or stream.
#pragma once

#include <cstdint>

#include "optim/kernels/operands.h"
#include "zerohold/options.h"

namespace zerohold::kernels {

// step: the parameter's own count, 1 for its first update. gradient_scale multiplies the gradient
// (clipping, unscaling). learning_rate replaces group.learning_rate (the schedule applied).
UpdateConstants MakeConstants(UpdateRule rule, const GroupOptions& group, double learning_rate,
                              int64_t step, double gradient_scale);

// Requires: `set` is kBest or one that Supports says yes to.
UpdateFunction SelectUpdate(UpdateRule rule, InstructionSet set);

// By the CPU's feature flags (and the operating system's saving of the registers), never by vendor.
bool Supports(InstructionSet set);
InstructionSet BestInstructionSet();
const char* NameOf(InstructionSet set);  // "baseline", "v3", "v4", "best"

}  // namespace zerohold::kernels
