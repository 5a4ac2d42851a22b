// One function for each instruction set that this build has: the loop of a rule, compiled for it.
#pragma once

#include "optim/kernels/operands.h"
#include "optim/kernels/rule_table.h"

namespace zerohold::kernels {

UpdateFunction BaselineLoop(RuleRow row);
#if defined(__x86_64__)
UpdateFunction V3Loop(RuleRow row);
UpdateFunction V4Loop(RuleRow row);
#endif

}  // namespace zerohold::kernels
