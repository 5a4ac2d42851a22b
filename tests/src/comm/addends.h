// Test data: shards, addends that any rank can make for any other one, and the sums they should
// have, by the plainest code there is.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "src/base/convert.h"
#include "src/comm/communicator.h"
#include "zerohold/tensor.h"

namespace zerohold::comm {

// A well mixed function of its arguments (splitmix64).
inline uint64_t Mixed(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Of both signs, magnitudes 2^-8 .. 2^8: sums in another order have other bits.
inline float AddendAt(int rank, int64_t i) {
  const uint64_t bits = Mixed(rank + 1, i);
  const float mantissa = 1.0f + static_cast<float>(bits & 0x7fffff) * 0x1p-23f;
  const int exponent = static_cast<int>((bits >> 32) % 17) - 8;
  const float magnitude = mantissa * static_cast<float>(1u << (exponent + 8)) * 0x1p-8f;
  return (bits >> 63) != 0 ? -magnitude : magnitude;
}

inline void Put(float value, DType dtype, void* buffer, int64_t i) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(buffer)[i] = value;
  } else {
    static_cast<uint16_t*>(buffer)[i] =
        dtype == DType::kBFloat16 ? base::FloatToBFloat16(value) : base::FloatToFloat16(value);
  }
}

inline float Get(DType dtype, const void* buffer, int64_t i) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(buffer)[i];
  const uint16_t bits = static_cast<const uint16_t*>(buffer)[i];
  return dtype == DType::kBFloat16 ? base::BFloat16ToFloat(bits) : base::Float16ToFloat(bits);
}

inline std::vector<std::byte> Addends(int rank, DType dtype, int64_t elems) {
  std::vector<std::byte> buffer(elems * SizeOf(dtype));
  for (int64_t i = 0; i < elems; ++i) Put(AddendAt(rank, i), dtype, buffer.data(), i);
  return buffer;
}

// What a rank's element i is once it is stored.
inline float StoredAddendAt(DType dtype, int rank, int64_t i) {
  std::byte addend[4];
  Put(AddendAt(rank, i), dtype, addend, 0);
  return Get(dtype, addend, 0);
}

// The sum of value(k) for k in [first, first + count): the left subtree is the largest power of two
// that leaves something for the right.
template <typename Value>
float NaiveTree(const Value& value, int first, int count) {
  if (count == 1) return value(first);
  int left = 1;
  while (2 * left < count) left *= 2;
  return NaiveTree(value, first, left) + NaiveTree(value, first + left, count - left);
}

// round(sum / divisor) of elements [begin, end).
inline std::vector<std::byte> NaiveMean(int world, DType dtype, int64_t begin, int64_t end,
                                        float divisor) {
  std::vector<std::byte> mean((end - begin) * SizeOf(dtype));
  for (int64_t i = begin; i < end; ++i) {
    const auto addend = [&](int rank) { return StoredAddendAt(dtype, rank, i); };
    Put(NaiveTree(addend, 0, world) / divisor, dtype, mean.data(), i - begin);
  }
  return mean;
}

// Shards of one size each, or of other sizes on every rank, empty ones among them.
inline std::vector<layout::Range> Shards(int world, int64_t elems, bool uneven) {
  std::vector<layout::Range> shards;
  int64_t begin = 0;
  for (int rank = 0; rank < world; ++rank) {
    const int64_t size = uneven ? rank % 3 * elems : elems;
    shards.push_back({begin, begin + size});
    begin += size;
  }
  return shards;
}

inline std::vector<std::byte> Scratch(Communicator& communicator,
                                      std::span<const layout::Range> shards, DType dtype) {
  int64_t longest = 0;
  for (const layout::Range& shard : shards) longest = std::max(longest, shard.size());
  std::vector<std::byte> scratch(Communicator::ScratchBytes(longest, dtype, communicator.size()));
  communicator.SetScratch(scratch);
  return scratch;
}

inline testing::AssertionResult SameBits(std::span<const std::byte> actual,
                                         std::span<const std::byte> expected) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure() << actual.size() << " bytes, not " << expected.size();
  }
  for (size_t i = 0; i < actual.size(); ++i) {
    if (actual[i] != expected[i]) {
      return testing::AssertionFailure() << "byte " << i << " of " << actual.size() << " differs";
    }
  }
  return testing::AssertionSuccess();
}

template <typename T>
testing::AssertionResult SameBits(const std::vector<T>& actual, const std::vector<T>& expected) {
  return SameBits(std::as_bytes(std::span(actual)), std::as_bytes(std::span(expected)));
}

}  // namespace zerohold::comm
