// The loops for AVX2; the flags are in CMakeLists.txt.
#include "optim/kernels/cpu/loop.h"
#include "optim/kernels/cpu/loops.h"

namespace zerohold::kernels {

UpdateFunction V3Loop(RuleRow row) { return LoopFor(row); }

}  // namespace zerohold::kernels
