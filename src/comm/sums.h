// What becomes of a sum over ranks.
#pragma once

#include <cstdint>
#include <span>

#include "src/base/norm_bins.h"
#include "zerohold/tensor.h"

namespace zerohold::comm {

// fp32 sums over the rounds (micro-batches) of a step, of this rank's shard. One level is summed in
// the order of rounds. Several hold the pairwise tree over rounds, as layout::SumOrder has it over
// ranks: level k holds the sum of an aligned block of 2^k rounds, and bit_width(rounds) are enough.
struct RunningSums {
  std::span<float* const> levels = {};  // empty: none
  int64_t round = 0;                    // of the sum that comes; round 0 overwrites what was there
};

// sum / divisor, rounded once.
struct Mean {
  void* out = nullptr;                 // may be an addend or level 0; else it overlaps none
  DType dtype = DType::kFloat32;       // of `out`
  DType rounded_to = DType::kFloat32;  // as `dtype`, or a 16-bit type whose values fp32 holds
  float divisor = 1.0f;
  base::NormBins* norm = nullptr;  // gets the squares of the rounded values; null for none
  double norm_weight = 1.0;
};

}  // namespace zerohold::comm
