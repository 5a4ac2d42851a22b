#include "src/comm/tree_sum.h"

#include <algorithm>
#include <cstring>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/convert.h"

namespace zerohold::comm {
namespace {

// 32 KiB of partial sums up to 8 ranks; with many ranks a block is as short as norms allow.
int64_t BlockElems(int world) {
  constexpr int64_t kMaxElems = 1024;
  constexpr int64_t kPartialElems = 8192;
  const int64_t blocks = kPartialElems / world / base::kBlockElems;
  return std::clamp(blocks * base::kBlockElems, base::kBlockElems, kMaxElems);
}

template <DType kDType>
float Widen(uint16_t bits) {
  if constexpr (kDType == DType::kBFloat16) return base::BFloat16ToFloat(bits);
  return base::Float16ToFloat(bits);
}

template <DType kDType>
uint16_t Narrow(float value) {
  if constexpr (kDType == DType::kBFloat16) return base::FloatToBFloat16(value);
  return base::FloatToFloat16(value);
}

void Add(float* __restrict out, const float* __restrict a, const float* __restrict b,
         int64_t elems) {
  for (int64_t i = 0; i < elems; ++i) out[i] = a[i] + b[i];
}

void AddTo(float* __restrict sum, const float* __restrict b, int64_t elems) {
  for (int64_t i = 0; i < elems; ++i) sum[i] = sum[i] + b[i];
}

void DivideBy(float divisor, float* values, int64_t elems) {
  for (int64_t i = 0; i < elems; ++i) values[i] = values[i] / divisor;
}

// Rounds to the dtype: to `out`, and, widened again, in place, for the norm.
template <DType kDType>
void Round(float* __restrict values, uint16_t* __restrict out, int64_t elems) {
  for (int64_t i = 0; i < elems; ++i) {
    out[i] = Narrow<kDType>(values[i]);
    values[i] = Widen<kDType>(out[i]);
  }
}

}  // namespace

TreeSum::TreeSum(int world)
    : order_(layout::SumOrder(world)),
      block_elems_(BlockElems(world)),
      partials_(world * block_elems_),
      values_(world) {}

template <DType kDType>
void TreeSum::SumBlock(const TreeSumOperands& operands, int64_t begin, int64_t elems) {
  for (size_t rank = 0; rank < values_.size(); ++rank) {
    if constexpr (kDType == DType::kFloat32) {
      values_[rank] = static_cast<const float*>(operands.addends[rank]) + begin;
    } else {
      const auto* addend = static_cast<const uint16_t*>(operands.addends[rank]) + begin;
      float* __restrict widened = partial(rank);
      for (int64_t i = 0; i < elems; ++i) widened[i] = Widen<kDType>(addend[i]);
      values_[rank] = widened;
    }
  }
  for (const layout::Addition& addition : order_) {
    float* sum = partial(addition.into);
    if (values_[addition.into] == sum) {
      AddTo(sum, values_[addition.from], elems);
    } else {
      Add(sum, values_[addition.into], values_[addition.from], elems);
      values_[addition.into] = sum;
    }
  }
  if (values_[0] != partial(0)) std::memcpy(partial(0), values_[0], elems * sizeof(float));
}

template <DType kDType>
void TreeSum::RunAll(const TreeSumOperands& operands) {
  for (int64_t begin = 0; begin < operands.elems; begin += block_elems_) {
    const int64_t elems = std::min(block_elems_, operands.elems - begin);
    SumBlock<kDType>(operands, begin, elems);
    float* mean = partial(0);
    DivideBy(operands.divisor, mean, elems);
    // Only here is `out` written: it may be one of the addends, whose block has been read.
    if constexpr (kDType == DType::kFloat32) {
      std::memcpy(static_cast<float*>(operands.out) + begin, mean, elems * sizeof(float));
    } else {
      Round<kDType>(mean, static_cast<uint16_t*>(operands.out) + begin, elems);
    }
    if (operands.norm != nullptr) operands.norm->Add(mean, elems, operands.norm_weight);
  }
}

void TreeSum::Run(const TreeSumOperands& operands) {
  ZH_CHECK(operands.addends.size() == values_.size(), operands.addends.size(), values_.size());
  switch (operands.dtype) {
    case DType::kFloat32:
      return RunAll<DType::kFloat32>(operands);
    case DType::kBFloat16:
      return RunAll<DType::kBFloat16>(operands);
    case DType::kFloat16:
      return RunAll<DType::kFloat16>(operands);
  }
}

}  // namespace zerohold::comm
