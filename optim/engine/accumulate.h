// Adds a micro-batch's gradients to their fp32 sums.
#pragma once

#include <cstddef>
#include <cstdint>

#include "zerohold/tensor.h"

namespace zerohold::engine {

// sums = add ? sums + gradient : gradient, widened.
void Accumulate(const std::byte* gradient, DType dtype, int64_t elems, bool add, float* sums);

}  // namespace zerohold::engine
