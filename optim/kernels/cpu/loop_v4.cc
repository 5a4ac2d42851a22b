// The loops for AVX-512; the flags are in CMakeLists.txt.
#include "optim/kernels/cpu/loop.h"
#include "optim/kernels/cpu/loops.h"

namespace zerohold::kernels {

UpdateFunction V4Loop(RuleRow row) { return LoopFor(row); }

}  // namespace zerohold::kernels
