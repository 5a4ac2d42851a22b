// One function for each instruction set that this build has: the loop of a shape, compiled for it.
#pragma once

#include "optim/kernels/operands.h"
#include "optim/kernels/rule_table.h"
#include "optim/kernels/storage.h"

namespace zerohold::kernels {

struct LoopShape {
  RuleRow rule;
  TypeRow gradient;
  FormRow form;
};

UpdateFunction BaselineLoop(const LoopShape& shape);
#if defined(__x86_64__)
UpdateFunction V3Loop(const LoopShape& shape);
UpdateFunction V4Loop(const LoopShape& shape);
#endif

}  // namespace zerohold::kernels
