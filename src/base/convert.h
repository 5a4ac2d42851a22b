// Between fp32 and the 16-bit types, in integers, round to nearest even, denormals kept, NaN stays NaN.
// The CPU's own bf16 conversion flushes denormals, so it is not used. Pure; host and device.
#pragma once

#include <cstdint>
#include <cstring>

namespace zerohold::base {

// To be written by the owner of the room: FloatBits, BitsFloat, BFloat16ToFloat, FloatToBFloat16,
// Float16ToFloat, FloatToFloat16.

}  // namespace zerohold::base
