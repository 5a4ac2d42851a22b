// A master as a bf16 copy and the 16 low bits that the copy lacks: exact both ways, for every
// finite value, zero and infinity. The copy is the master rounded to nearest, a tie away from zero.
//
//   split: low = bits & 0xffff, copy = (bits + 0x8000) >> 16
//   join:  bits = (copy << 16) + low, low taken as signed
//
// A NaN stays NaN in both, with its sign and upper payload (as base/convert.h rounds it); the lower
// payload is dropped, since its carry would make the copy a number.
#pragma once

#include <cstdint>

#include "src/base/convert.h"
#include "src/base/host_device.h"

namespace zerohold::kernels {

struct SplitFloat {
  uint16_t copy;
  uint16_t low;
};

ZH_HOST_DEVICE ZH_ALWAYS_INLINE constexpr SplitFloat SplitMaster(float master) {
  const uint32_t bits = base::FloatBits(master);
  const bool nan = (bits & 0x7fffffff) > 0x7f800000;
  const uint32_t kept = nan ? (bits | 0x00400000) & 0xffff0000 : bits;
  return {static_cast<uint16_t>((kept + 0x8000) >> 16), static_cast<uint16_t>(kept)};
}

ZH_HOST_DEVICE ZH_ALWAYS_INLINE constexpr float JoinMaster(uint16_t copy, uint16_t low) {
  const auto signed_low = static_cast<int32_t>(static_cast<int16_t>(low));
  return base::BitsFloat((static_cast<uint32_t>(copy) << 16) + static_cast<uint32_t>(signed_low));
}

}  // namespace zerohold::kernels
