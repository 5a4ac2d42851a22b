// The loops for the least that the target has (x86-64: SSE2); the flags are in CMakeLists.txt.
#include "optim/kernels/cpu/loop.h"
#include "optim/kernels/cpu/loops.h"

namespace zerohold::kernels {

UpdateFunction BaselineLoop(RuleRow row) { return LoopFor(row); }

}  // namespace zerohold::kernels
