// The norm that is free of order: sums of squares, block by block, in integer bins.
//
// An aligned block of 256 elements is squared and summed in 16 fixed fp32 lanes (lane i takes
// elements i, i+16, ...), the lanes pairwise; a block whose fp32 sum overflows, or is so small that
// squares may have lost bits (below 2^-118), is summed again in double, the same way. The block's
// value times its weight is rounded to 24 bits, and that integer is added to the int64 bin of its
// exponent. Integers commute, so any split of the blocks over ranks, buckets, threads and calls
// gives the same bins and the same norm. Threads: none of its own; one owner at a time.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace zerohold::base {

class NormBins {
 public:
  static constexpr int kExponentsPerBin = 4;
  // Exponents -298 (the smallest square) .. 284 (a block of the largest, and the largest weight). A
  // block takes 27 of an int64's 63 bits: room for 2^36 blocks.
  static constexpr int kBins = 146;
  static constexpr double kLargestWeight = 0x1p20;

  // Adds the squares of x[0, elems), which begin at a block border. A tail shorter than a block is
  // a block padded with zeros. A NaN or infinity only sets nonfinite(). Requires: 0 < weight <=
  // kLargestWeight.
  void Add(const float* x, int64_t elems, double weight = 1.0);

  void Clear();
  bool nonfinite() const { return nonfinite_; }
  void set_nonfinite(bool value) { nonfinite_ = value; }
  std::span<int64_t, kBins> bins() { return bins_; }
  std::span<const int64_t, kBins> bins() const { return bins_; }

  // sqrt of the binned sum; NaN when nonfinite().
  double Norm() const;

 private:
  void AddBlock(const float* x, double weight);

  std::array<int64_t, kBins> bins_{};
  bool nonfinite_ = false;
};

}  // namespace zerohold::base
