// The norm: free of order and split, near to exact at every magnitude, and honest about what is not
// finite.
#include "src/base/norm_bins.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "src/base/align.h"

namespace zerohold::base {
namespace {

std::vector<int64_t> Bins(const NormBins& bins) { return {bins.bins().begin(), bins.bins().end()}; }

// Accurate far beyond what is tested, at any magnitude: x87 or 128-bit range and mantissa.
long double Exact(const std::vector<float>& x, long double weight = 1.0L) {
  long double sum = 0.0L;
  for (const float value : x)
    sum += static_cast<long double>(value) * static_cast<long double>(value);
  return std::sqrt(sum * weight);
}

double NormOf(const std::vector<float>& x, double weight = 1.0) {
  NormBins bins;
  bins.Add(x.data(), static_cast<int64_t>(x.size()), weight);
  return bins.Norm();
}

// Values of all magnitudes that fp32 has, or of one.
std::vector<float> Random(std::mt19937_64& random, int64_t elems, int lowest_exponent,
                          int highest_exponent) {
  std::uniform_real_distribution<float> mantissa(-1.0f, 1.0f);
  std::uniform_int_distribution<int> exponent(lowest_exponent, highest_exponent);
  std::vector<float> x(static_cast<size_t>(elems));
  for (float& value : x) value = std::ldexp(mantissa(random), exponent(random));
  return x;
}

TEST(NormBins, FreeOfOrderAndSplit) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 30; ++round) {
    const int64_t blocks = 1 + static_cast<int64_t>(random() % 40);
    const int64_t elems = blocks * kBlockElems - static_cast<int64_t>(random() % kBlockElems);
    const std::vector<float> x = Random(random, elems, -140, 120);
    NormBins whole;
    whole.Add(x.data(), elems);

    // The same blocks in any order, over four owners whose bins are added as the agreement adds
    // them.
    std::vector<int64_t> order(static_cast<size_t>(blocks));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    NormBins owners[4];
    for (const int64_t block : order) {
      const int64_t begin = block * kBlockElems;
      owners[random() % 4].Add(x.data() + begin, std::min(kBlockElems, elems - begin));
    }
    NormBins sum;
    for (NormBins& owner : owners) {
      for (int i = 0; i < NormBins::kBins; ++i) sum.bins()[i] += owner.bins()[i];
    }
    ASSERT_EQ(Bins(sum), Bins(whole));
    ASSERT_EQ(sum.Norm(), whole.Norm());

    // In longer runs of blocks.
    NormBins runs;
    for (int64_t begin = 0; begin < elems;) {
      const int64_t length =
          std::min(elems - begin, kBlockElems * (1 + static_cast<int64_t>(random() % 5)));
      runs.Add(x.data() + begin, length);
      begin += length;
    }
    ASSERT_EQ(Bins(runs), Bins(whole));
  }
}

TEST(NormBins, NearToExactAtEveryMagnitude) {
  std::mt19937_64 random(2);
  const int ranges[][2] = {{-3, 0},  {-149, -130}, {-80, -50}, {-70, -60},
                           {60, 70}, {120, 127},   {-149, 127}};
  for (const auto& range : ranges) {
    for (const int64_t elems : {1, 2, 255, 256, 257, 10007}) {
      const std::vector<float> x = Random(random, elems, range[0], range[1]);
      const auto exact = static_cast<double>(Exact(x));
      ASSERT_NEAR(NormOf(x), exact, exact * 5e-7) << range[0] << ' ' << range[1] << ' ' << elems;
    }
  }
}

TEST(NormBins, HugeTinyAndMixed) {
  for (const float value :
       {1e38f, FLT_MAX, 1e-45f, FLT_MIN, 1e-20f, 1e-23f, 0x1p-63f, 0x1p-64f, 0x1p-59f}) {
    for (const size_t elems : {1, 256, 1000}) {
      const double exact = std::sqrt(static_cast<double>(elems)) * static_cast<double>(value);
      ASSERT_NEAR(NormOf(std::vector<float>(elems, value)), exact, exact * 2e-7)
          << value << ' ' << elems;
    }
  }
  // One block of each: the tiny ones are far below what the sum can show, and harm nothing.
  std::vector<float> mixed(3 * kBlockElems, 1e-45f);
  std::fill_n(mixed.begin(), kBlockElems, 1e38f);
  std::fill_n(mixed.begin() + kBlockElems, kBlockElems, 1.0f);
  EXPECT_NEAR(NormOf(mixed), 16.0 * static_cast<double>(1e38f), 1e33);
  // In one block too: a single element of 1 hides nothing of 255 whose squares vanish in fp32.
  std::vector<float> block(kBlockElems, 1e-30f);
  block[17] = 1.0f;
  EXPECT_EQ(NormOf(block), 1.0);
  // A denormal alone is not lost.
  EXPECT_EQ(NormOf({1e-45f}), 0x1p-149);
}

TEST(NormBins, WeightsMultiplyTheSquares) {
  std::mt19937_64 random(3);
  for (const double weight : {1.0 / 3.0, 0.25, 1.0, 8.0, NormBins::kLargestWeight, 1e-30}) {
    for (const int exponent : {-149, -60, 0, 120}) {
      const std::vector<float> x = Random(random, 1000, exponent, exponent + 5);
      const auto exact = static_cast<double>(Exact(x, weight));
      // Below the lowest bin the grid ends: 2^-321 of the square.
      const double grid = std::sqrt(4 * 0x1p-321);
      ASSERT_NEAR(NormOf(x, weight), exact, exact * 5e-7 + grid) << weight << ' ' << exponent;
    }
  }
  const std::vector<float> largest(256, FLT_MAX);
  EXPECT_GT(NormOf(largest, NormBins::kLargestWeight), 0x1p141);
}

TEST(NormBins, ManyLargestBlocksDoNotOverflowABin) {
  NormBins bins;
  const std::vector<float> block(kBlockElems, std::nextafter(16.0f, 0.0f));
  bins.Add(block.data(), kBlockElems);
  const int64_t largest = *std::max_element(bins.bins().begin(), bins.bins().end());
  EXPECT_LE(largest, int64_t{1} << 27);
}

TEST(NormBins, NothingAndZerosAreZero) {
  EXPECT_EQ(NormBins().Norm(), 0.0);
  EXPECT_EQ(NormOf({}), 0.0);
  EXPECT_EQ(NormOf(std::vector<float>(1000, 0.0f)), 0.0);
  EXPECT_EQ(NormOf(std::vector<float>(1000, -0.0f)), 0.0);
}

TEST(NormBins, PaddingWithZerosChangesNothing) {
  std::mt19937_64 random(4);
  std::vector<float> x = Random(random, 300, -10, 10);
  NormBins tail;
  tail.Add(x.data(), 300);
  x.resize(512, 0.0f);
  NormBins padded;
  padded.Add(x.data(), 512);
  EXPECT_EQ(Bins(tail), Bins(padded));
}

TEST(NormBins, WhatIsNotFiniteOnlySetsTheFlag) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const float rest : {0.0f, 1.0f, 1e-40f, 1e38f}) {
      for (const int64_t at : {0, 15, 255, 256, 299}) {
        std::vector<float> x(300, rest);
        x[static_cast<size_t>(at)] = bad;
        NormBins bins;
        bins.Add(x.data(), 300);
        ASSERT_TRUE(bins.nonfinite()) << bad << ' ' << rest << ' ' << at;
        ASSERT_TRUE(std::isnan(bins.Norm()));
        // The other block alone is in the bins.
        NormBins other;
        if (at < 256) other.Add(x.data() + 256, 44);
        if (at >= 256) other.Add(x.data(), 256);
        ASSERT_FALSE(other.nonfinite());
        ASSERT_EQ(Bins(bins), Bins(other));
        bins.Clear();
        ASSERT_FALSE(bins.nonfinite());
        ASSERT_EQ(bins.Norm(), 0.0);
      }
    }
  }
}

}  // namespace
}  // namespace zerohold::base
