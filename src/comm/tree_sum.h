// The sum over ranks: fp32, in the order of layout::SumOrder, block by block so that partial sums
// stay in the first cache; then mean, rounding and norm of the block while it is there.
//
// Does not know: where addends came from.
// Threads: one at a time; Run allocates nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/base/norm_bins.h"
#include "src/layout/sum_order.h"
#include "zerohold/tensor.h"

namespace zerohold::comm {

struct TreeSumOperands {
  std::span<const void* const> addends;  // of each rank
  DType dtype = DType::kFloat32;         // of addends and out
  int64_t elems = 0;
  float divisor = 1.0f;
  void* out = nullptr;  // may be one of the addends; else it overlaps none
  base::NormBins* norm = nullptr;
  double norm_weight = 1.0;
};

class TreeSum {
 public:
  explicit TreeSum(int world);

  // out = round(sum / divisor), once; the squares of the rounded values go to `norm`.
  void Run(const TreeSumOperands& operands);

 private:
  template <DType kDType>
  void RunAll(const TreeSumOperands& operands);
  // Leaves the sum of the block in partial(0).
  template <DType kDType>
  void SumBlock(const TreeSumOperands& operands, int64_t begin, int64_t elems);
  float* partial(int rank) { return partials_.data() + rank * block_elems_; }

  const std::vector<layout::Addition> order_;
  const int64_t block_elems_;
  std::vector<float> partials_;       // world blocks
  std::vector<const float*> values_;  // where each rank's subtree stands: its addend or its partial
};

}  // namespace zerohold::comm
