// The loops for the least that the target has (x86-64: SSE2); the flags are in CMakeLists.txt.
#include "optim/kernels/cpu/loop.h"

namespace zerohold::kernels {

UpdateFunction BaselineLoop(const LoopShape& shape) { return LoopFor(shape); }

}  // namespace zerohold::kernels
