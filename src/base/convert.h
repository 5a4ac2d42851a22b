// Between fp32 and the 16-bit types, in integers, round to nearest even, denormals kept, NaN stays
// NaN. The CPU's own bf16 conversion flushes denormals, so it is not used. Pure; host and device;
// C++17. Free of branches, so that a loop over them becomes vector code.
#pragma once

#include <cstdint>

#include "src/base/host_device.h"

namespace zerohold::base {

ZH_HOST_DEVICE ZH_ALWAYS_INLINE constexpr uint32_t FloatBits(float value) {
  return __builtin_bit_cast(uint32_t, value);
}

ZH_HOST_DEVICE ZH_ALWAYS_INLINE constexpr float BitsFloat(uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}

// Drops `count` low bits of `bits`, to nearest, ties to even. Requires: 1 <= count <= 31, and a sum
// below 2^32.
ZH_HOST_DEVICE ZH_ALWAYS_INLINE constexpr uint32_t RoundShift(uint32_t bits, uint32_t count) {
  return (bits + (1u << (count - 1)) - 1 + ((bits >> count) & 1)) >> count;
}

// Exact.
ZH_HOST_DEVICE ZH_ALWAYS_INLINE constexpr float BFloat16ToFloat(uint16_t value) {
  return BitsFloat(static_cast<uint32_t>(value) << 16);
}

// Above the largest finite value it rounds to infinity. A NaN keeps its sign and upper payload and
// becomes quiet.
ZH_HOST_DEVICE ZH_ALWAYS_INLINE constexpr uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = FloatBits(value);
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  // The carry out of the mantissa is the next exponent, and out of the largest one infinity.
  return static_cast<uint16_t>(nan ? (bits >> 16) | 0x40 : RoundShift(bits, 16));
}

// Exact.
ZH_HOST_DEVICE ZH_ALWAYS_INLINE constexpr float Float16ToFloat(uint16_t value) {
  const uint32_t sign = static_cast<uint32_t>(value & 0x8000) << 16;
  const uint32_t magnitude = value & 0x7fff;
  const uint32_t normal = (magnitude << 13) + ((127 - 15) << 23);
  const uint32_t special = (magnitude << 13) | 0x7f800000;  // infinity and NaN
  // A denormal is an integer times 2^-24: the conversion of a small integer is exact and normal in
  // fp32, whatever the rounding mode, and the scale goes into the exponent.
  const uint32_t denormal =
      magnitude == 0 ? 0
                     : FloatBits(static_cast<float>(static_cast<int32_t>(magnitude))) - (24u << 23);
  const uint32_t bits = magnitude >= 0x7c00 ? special : magnitude < 0x0400 ? denormal : normal;
  return BitsFloat(sign | bits);
}

// Above 65519.99 it rounds to infinity. A NaN keeps its sign and upper payload and becomes quiet.
ZH_HOST_DEVICE ZH_ALWAYS_INLINE constexpr uint16_t FloatToFloat16(float value) {
  const uint32_t bits = FloatBits(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  // Below 2^-14 the grid is 2^-24 wide, which is that of fp32 just above 0.5: one IEEE addition
  // rounds as wanted and leaves the 16 bits at the end of its mantissa.
  const uint32_t denormal = FloatBits(BitsFloat(magnitude) + 0.5f) - FloatBits(0.5f);
  const uint32_t normal = RoundShift(magnitude - ((127 - 15) << 23), 13);
  const uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  const uint32_t large = magnitude > 0x7f800000 ? nan : magnitude >= 0x477ff000 ? 0x7c00 : normal;
  return static_cast<uint16_t>(sign | (magnitude < 0x38800000 ? denormal : large));
}

}  // namespace zerohold::base
