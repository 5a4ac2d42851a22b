// The loops for AVX2; the flags are in CMakeLists.txt.
#include "optim/kernels/cpu/loop.h"

namespace zerohold::kernels {

UpdateFunction V3Loop(const LoopShape& shape) { return LoopFor(shape); }

}  // namespace zerohold::kernels
