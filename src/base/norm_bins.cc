// Sums of squares in fixed lanes, and their way into the integer bins.
#include "src/base/norm_bins.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <limits>

#include "src/base/align.h"
#include "src/base/check.h"

namespace zerohold::base {
namespace {

constexpr int kLanes = 16;
constexpr int kLowestExponent = -298;  // the smallest fp32 denormal, squared
constexpr int kDroppedBits = 53 - 24;  // of a double's significand
// A square below 2^-126 is off by up to 2^-150; 256 of them by less than 2^-24 of such a sum.
constexpr float kSmallestSafeSum = 0x1p-118f;
// The bits of 2^-63. Its exponent is a power of two: bits joined by "or" are below it when all are.
constexpr uint32_t kTinyMagnitude = 0x20000000;
static_assert(std::bit_cast<float>(kTinyMagnitude) == 0x1p-63f);

// The order of this sum is part of the format of every norm: lane i takes elements i, i + 16, ...,
// and then lane i takes lane i + 8, i + 4, i + 2, i + 1.
template <typename T>
T SumOfSquares(const float* x) {
  T lanes[kLanes] = {};
  for (int row = 0; row < kBlockElems; row += kLanes) {
    for (int i = 0; i < kLanes; ++i)
      lanes[i] += static_cast<T>(x[row + i]) * static_cast<T>(x[row + i]);
  }
#pragma GCC unroll 4
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// The bits of all |x| together: 0 when all are zero; an upper bound of the largest.
uint32_t JoinedMagnitudes(const float* x) {
  uint32_t lanes[kLanes] = {};
  for (int row = 0; row < kBlockElems; row += kLanes) {
    for (int i = 0; i < kLanes; ++i) lanes[i] |= std::bit_cast<uint32_t>(x[row + i]);
  }
  uint32_t joined = 0;
  for (const uint32_t lane : lanes) joined |= lane;
  return joined & 0x7fffffff;
}

// NaN when an element is not finite.
double BlockValue(const float* x) {
  const uint32_t joined = JoinedMagnitudes(x);
  if (joined == 0) return 0.0;
  // All below 2^-63: the fp32 sum would be too small, and its denormal squares cost some processors
  // a hundred cycles each.
  if (joined < kTinyMagnitude) return SumOfSquares<double>(x);
  const float sum = SumOfSquares<float>(x);
  if (sum >= kSmallestSafeSum && sum <= FLT_MAX) [[likely]]
    return sum;
  const bool finite =
      std::all_of(x, x + kBlockElems, [](float value) { return std::isfinite(value); });
  return finite ? SumOfSquares<double>(x) : std::numeric_limits<double>::quiet_NaN();
}

// Drops `count` low bits, to nearest, ties to even. Requires: 1 <= count < 63, bits < 2^62.
int64_t RoundShift(uint64_t bits, int count) {
  return static_cast<int64_t>((bits + (uint64_t{1} << (count - 1)) - 1 + ((bits >> count) & 1)) >>
                              count);
}

}  // namespace

void NormBins::Add(const float* x, int64_t elems, double weight) {
  ZH_CHECK(weight > 0.0 && weight <= kLargestWeight, weight);
  for (; elems >= kBlockElems; x += kBlockElems, elems -= kBlockElems) AddBlock(x, weight);
  if (elems <= 0) return;
  float tail[kBlockElems] = {};
  std::memcpy(tail, x, static_cast<size_t>(elems) * sizeof(float));
  AddBlock(tail, weight);
}

void NormBins::AddBlock(const float* x, double weight) {
  const double sum = BlockValue(x);
  if (sum == 0.0) return;
  if (std::isnan(sum)) {
    nonfinite_ = true;
    return;
  }
  const uint64_t bits = std::bit_cast<uint64_t>(sum * weight);
  const uint64_t significand = (bits & ((uint64_t{1} << 52) - 1)) | (uint64_t{1} << 52);
  const int exponent = static_cast<int>(bits >> 52) - 1023 - kLowestExponent;
  const int bin = std::max(exponent, 0) / kExponentsPerBin;
  // Only a small weight of tiny squares lies below the lowest bin: there the grid ends, as for
  // denormals.
  const int shift = exponent - bin * kExponentsPerBin;
  bins_[bin] += shift >= 0 ? RoundShift(significand, kDroppedBits) << shift
                           : RoundShift(significand, std::min(kDroppedBits - shift, 61));
}

void NormBins::Clear() {
  bins_.fill(0);
  nonfinite_ = false;
}

double NormBins::Norm() const {
  if (nonfinite_) return std::numeric_limits<double>::quiet_NaN();
  double sum = 0.0;
  for (int bin = 0; bin < kBins; ++bin) {
    const int exponent = kLowestExponent + bin * kExponentsPerBin - 23;
    sum += std::ldexp(static_cast<double>(bins_[bin]), exponent);
  }
  return std::sqrt(sum);
}

}  // namespace zerohold::base
