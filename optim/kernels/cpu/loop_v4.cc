// The loops for AVX-512; the flags are in CMakeLists.txt.
#include "optim/kernels/cpu/loop.h"

namespace zerohold::kernels {

UpdateFunction V4Loop(const LoopShape& shape) { return LoopFor(shape); }

}  // namespace zerohold::kernels
