// Rounding of sizes, and the two granularities that the whole house shares.
#pragma once

#include <cstdint>

namespace zerohold::base {

// Blocks in which norms are summed; borders of buckets, shards and flat spaces are multiples of it.
inline constexpr int64_t kBlockElems = 256;
// Parameters begin at multiples of this in their flat space, so that every view is aligned to a
// cache line.
inline constexpr int64_t kParameterAlignElems = 64;
inline constexpr int64_t kPageBytes = 4096;
// Frames are moved in multiples of a huge page: then page tables move whole.
inline constexpr int64_t kFrameBytes = int64_t{2} << 20;

// Requires: a >= 0, b > 0, a + b representable.
constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t AlignUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

}  // namespace zerohold::base
