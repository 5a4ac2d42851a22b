// The sum over ranks: fp32, in the order of layout::SumOrder, block by block so that partial sums
// stay in the first cache; while a block is there it is added to the sums of earlier micro-batches,
// or its mean is rounded and its norm taken.
//
// Does not know: where addends came from.
// Threads: one at a time; Run and Finish allocate nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/comm/sums.h"
#include "src/layout/sum_order.h"
#include "zerohold/tensor.h"

namespace zerohold::comm {

struct TreeSumOperands {
  std::span<const void* const> addends = {};  // of each rank
  DType dtype = DType::kFloat32;              // of addends
  std::span<const float> weights = {};  // of each rank: multiply its addend, in fp32; empty: none
  int64_t elems = 0;
  // Where the sum goes: to the running sums, if there are any, else to its mean.
  RunningSums sums = {};
  Mean mean = {};
};

class TreeSum {
 public:
  explicit TreeSum(int world);

  void Run(const TreeSumOperands& operands);
  // The mean of the running sums, after `rounds` of them; mean.out may be sums.levels[0].
  void Finish(const RunningSums& sums, int64_t rounds, int64_t elems, const Mean& mean);

 private:
  template <DType kDType>
  void RunAll(const TreeSumOperands& operands);
  // Leaves the sum of the block in partial(0).
  template <DType kDType>
  void SumBlock(const TreeSumOperands& operands, int64_t begin, int64_t elems);
  // Takes the block in partial(0).
  void AddToLevels(const RunningSums& sums, int64_t begin, int64_t elems);
  void WriteMean(const Mean& mean, int64_t begin, int64_t elems);
  float* partial(int rank) { return partials_.data() + rank * block_elems_; }

  const std::vector<layout::Addition> order_;
  const int64_t block_elems_;
  std::vector<float> partials_;       // world blocks
  std::vector<const float*> values_;  // where each rank's subtree stands: its addend or its partial
};

}  // namespace zerohold::comm
