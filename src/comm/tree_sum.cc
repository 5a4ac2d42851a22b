#include "src/comm/tree_sum.h"

#include <algorithm>
#include <bit>
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

// `out` may be `values`.
void Scale(float factor, const float* values, float* out, int64_t elems) {
  for (int64_t i = 0; i < elems; ++i) out[i] = factor * values[i];
}

void DivideBy(float divisor, float* values, int64_t elems) {
  for (int64_t i = 0; i < elems; ++i) values[i] = values[i] / divisor;
}

// In place; `out`, if it is there, gets the 16 bits.
template <DType kDType>
void Round(float* __restrict values, uint16_t* __restrict out, int64_t elems) {
  if (out == nullptr) {
    for (int64_t i = 0; i < elems; ++i) values[i] = Widen<kDType>(Narrow<kDType>(values[i]));
    return;
  }
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
    if (!operands.weights.empty()) {
      Scale(operands.weights[rank], values_[rank], partial(rank), elems);
      values_[rank] = partial(rank);
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
    if (operands.sums.levels.empty()) {
      WriteMean(operands.mean, begin, elems);
    } else {
      AddToLevels(operands.sums, begin, elems);
    }
  }
}

void TreeSum::AddToLevels(const RunningSums& sums, int64_t begin, int64_t elems) {
  float* const sum = partial(0);
  const auto part = [&](size_t level) { return sums.levels[level] + begin; };
  if (sums.levels.size() == 1 && sums.round > 0) return AddTo(part(0), sum, elems);
  // As a binary counter counts: full blocks of rounds merge into the next level.
  size_t level = 0;
  for (; sums.round >> level & 1; ++level) AddTo(sum, part(level), elems);
  ZH_CHECK(level < sums.levels.size(), sums.round, sums.levels.size());
  std::memcpy(part(level), sum, elems * sizeof(float));
}

void TreeSum::Finish(const RunningSums& sums, int64_t rounds, int64_t elems, const Mean& mean) {
  // Bit k: level k holds a block of rounds; the last rounds are in the lowest one.
  const uint64_t used = sums.levels.size() == 1 ? 1 : rounds;
  ZH_CHECK(rounds > 0 && used >> sums.levels.size() == 0, rounds, sums.levels.size());
  const int last = std::countr_zero(used);
  for (int64_t begin = 0; begin < elems; begin += block_elems_) {
    const int64_t block = std::min(block_elems_, elems - begin);
    std::memcpy(partial(0), sums.levels[last] + begin, block * sizeof(float));
    for (size_t level = last + 1; level < sums.levels.size(); ++level) {
      if (used >> level & 1) AddTo(partial(0), sums.levels[level] + begin, block);
    }
    WriteMean(mean, begin, block);
  }
}

void TreeSum::WriteMean(const Mean& mean, int64_t begin, int64_t elems) {
  float* const values = partial(0);
  DivideBy(mean.divisor, values, elems);
  // Only here is `out` written: it may be one of the addends, whose block has been read.
  const bool wide = mean.dtype == DType::kFloat32;
  ZH_CHECK(wide || mean.rounded_to == mean.dtype, NameOf(mean.rounded_to), NameOf(mean.dtype));
  uint16_t* const out = wide ? nullptr : static_cast<uint16_t*>(mean.out) + begin;
  if (mean.rounded_to == DType::kBFloat16) Round<DType::kBFloat16>(values, out, elems);
  if (mean.rounded_to == DType::kFloat16) Round<DType::kFloat16>(values, out, elems);
  if (wide) std::memcpy(static_cast<float*>(mean.out) + begin, values, elems * sizeof(float));
  if (mean.norm != nullptr) mean.norm->Add(values, elems, mean.norm_weight);
}

void TreeSum::Run(const TreeSumOperands& operands) {
  ZH_CHECK(operands.addends.size() == values_.size(), operands.addends.size(), values_.size());
  ZH_CHECK(operands.weights.empty() || operands.weights.size() == values_.size(),
           operands.weights.size(), values_.size());
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
