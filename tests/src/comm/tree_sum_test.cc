// The tree sum against a naive one.
#include "src/comm/tree_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "tests/src/comm/addends.h"

namespace zerohold::comm {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

// What each rank of a world brings, where `first` counts as rank 0.
struct World {
  World(int world, DType dtype, int64_t elems, int first = 0) {
    for (int rank = 0; rank < world; ++rank) {
      addends.push_back(Addends(first + rank, dtype, elems));
      places.push_back(addends.back().data());
    }
  }
  std::vector<std::vector<std::byte>> addends;
  std::vector<const void*> places;
};

// Every world up to where blocks are shortest, and sizes on both sides of a block's end.
TEST(TreeSum, IsTheNaiveSumInBits) {
  for (const int world : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 31, 33, 64, 70}) {
    TreeSum tree_sum(world);
    for (const DType dtype : kDTypes) {
      for (const int64_t elems : {0, 1, 255, 256, 257, 1024, 2049}) {
        World ranks(world, dtype, elems);
        std::vector<std::byte>& out = ranks.addends[world / 2];
        base::NormBins norm;
        tree_sum.Run({.addends = ranks.places,
                      .dtype = dtype,
                      .elems = elems,
                      .mean = {.out = out.data(),
                               .dtype = dtype,
                               .rounded_to = dtype,
                               .divisor = 7.0f,
                               .norm = &norm}});
        const std::vector<std::byte> expected = NaiveMean(world, dtype, 0, elems, 7.0f);
        ASSERT_TRUE(SameBits(out, expected)) << world << " " << NameOf(dtype) << " " << elems;
        double squares = 0;
        for (int64_t i = 0; i < elems; ++i) {
          const double value = Get(dtype, expected.data(), i);
          squares += value * value;
        }
        ASSERT_NEAR(norm.Norm() * norm.Norm(), squares, 1e-6 * squares);
      }
    }
  }
}

TEST(TreeSum, WeightsMultiplyAddendsInFp32) {
  constexpr int64_t kElems = 1300;
  for (const int world : {1, 2, 3, 5, 8, 33}) {
    std::vector<float> weights;
    for (int rank = 0; rank < world; ++rank) weights.push_back(AddendAt(rank, -1));
    for (const DType dtype : kDTypes) {
      const World ranks(world, dtype, kElems);
      std::vector<float> mean(kElems);
      TreeSum(world).Run({.addends = ranks.places,
                          .dtype = dtype,
                          .weights = weights,
                          .elems = kElems,
                          .mean = {.out = mean.data(), .divisor = 3.0f}});
      std::vector<float> expected(kElems);
      for (int64_t i = 0; i < kElems; ++i) {
        const auto addend = [&](int rank) {
          return weights[rank] * StoredAddendAt(dtype, rank, i);
        };
        expected[i] = NaiveTree(addend, 0, world) / 3.0f;
      }
      ASSERT_TRUE(SameBits(mean, expected)) << world << " " << NameOf(dtype);
      ASSERT_EQ(ranks.addends, World(world, dtype, kElems).addends);  // read only
    }
  }
}

// Running sums, which begin as garbage.
class Rounds {
 public:
  Rounds(int world, int64_t elems, int levels) : tree_sum_(world), world_(world), elems_(elems) {
    for (int level = 0; level < levels; ++level) {
      sums_.emplace_back(elems, NAN);
      levels_.push_back(sums_.back().data());
    }
  }

  // Micro-batch i belongs to rank i mod world.
  void Add(int rounds, DType dtype = DType::kFloat32) {
    for (int round = 0; round < rounds; ++round) {
      const World ranks(world_, dtype, elems_, round * world_);
      tree_sum_.Run({.addends = ranks.places,
                     .dtype = dtype,
                     .elems = elems_,
                     .sums = {.levels = levels_, .round = round}});
    }
    rounds_ = rounds;
  }

  void Finish(const Mean& mean) { tree_sum_.Finish({levels_, rounds_}, rounds_, elems_, mean); }

  std::vector<float> Sum() {
    std::vector<float> sum(elems_);
    Finish({.out = sum.data()});
    return sum;
  }

  std::vector<float>& level(int k) { return sums_[k]; }

 private:
  TreeSum tree_sum_;
  const int world_;
  const int64_t elems_;
  int64_t rounds_ = 0;
  std::vector<std::vector<float>> sums_;
  std::vector<float*> levels_;
};

TEST(TreeSum, OneLevelAddsInTheOrderOfRounds) {
  constexpr int64_t kElems = 1300;
  for (const int world : {1, 2, 3}) {
    Rounds sums(world, kElems, /*levels=*/1);
    for (const int rounds : {1, 2, 7}) {  // a later step begins anew
      sums.Add(rounds);
      std::vector<float> expected(kElems);
      for (int64_t i = 0; i < kElems; ++i) {
        const auto addend = [i](int k) { return AddendAt(k, i); };
        float& sum = expected[i] = NaiveTree(addend, 0, world);
        for (int r = 1; r < rounds; ++r) sum += NaiveTree(addend, r * world, world);
      }
      ASSERT_TRUE(SameBits(sums.Sum(), expected)) << world << " " << rounds;
      ASSERT_TRUE(SameBits(sums.level(0), expected));  // as it was
    }
  }
}

// The same micro-batches over 1, 2 and 4 ranks: one tree, the same bits. Odd numbers of rounds, and
// levels that are not needed, change nothing.
TEST(TreeSum, SeveralLevelsAndRanksAreOneTree) {
  constexpr int64_t kElems = 1300;
  for (const int micro_batches : {1, 2, 3, 4, 5, 7, 8, 12, 13, 20, 28}) {
    std::vector<float> expected(kElems);
    for (int64_t i = 0; i < kElems; ++i) {
      expected[i] = NaiveTree([i](int k) { return AddendAt(k, i); }, 0, micro_batches);
    }
    for (const int world : {1, 2, 4}) {
      if (micro_batches % world != 0) continue;
      const int rounds = micro_batches / world;
      const int enough = std::bit_width(static_cast<unsigned>(rounds));
      for (const int levels : {enough, enough + 2}) {
        Rounds sums(world, kElems, levels);
        sums.Add(rounds);
        ASSERT_TRUE(SameBits(sums.Sum(), expected)) << micro_batches << " over " << world;
      }
    }
  }
}

// A world that is no power of two: the tree over rounds of the trees over ranks.
TEST(TreeSum, SeveralLevelsHoldTheTreeOverRounds) {
  constexpr int64_t kElems = 300;
  for (const int rounds : {1, 2, 3, 6, 7, 11}) {
    Rounds sums(3, kElems, 4);
    sums.Add(rounds, DType::kBFloat16);
    std::vector<float> expected(kElems);
    for (int64_t i = 0; i < kElems; ++i) {
      const auto addend = [i](int k) { return StoredAddendAt(DType::kBFloat16, k, i); };
      const auto round = [&](int r) { return NaiveTree(addend, 3 * r, 3); };
      expected[i] = NaiveTree(round, 0, rounds);
    }
    ASSERT_TRUE(SameBits(sums.Sum(), expected)) << rounds;
  }
}

// Elsewhere or in place of level 0; in 16 bits or as the same values in fp32: one mean, one norm.
TEST(TreeSum, MeansAreTheSameWhereverTheyLie) {
  constexpr int64_t kElems = 2600;  // some blocks
  for (const int levels : {1, 3}) {
    for (const DType dtype : kDTypes) {
      Rounds sums(2, kElems, levels);
      sums.Add(5, dtype);
      std::vector<std::byte> expected(kElems * SizeOf(dtype));
      std::vector<float> widened(kElems);
      const std::vector<float> sum = sums.Sum();
      for (int64_t i = 0; i < kElems; ++i) {
        Put(sum[i] / 10.0f, dtype, expected.data(), i);
        widened[i] = Get(dtype, expected.data(), i);
      }
      base::NormBins expected_norm;
      expected_norm.Add(widened.data(), kElems, 0.5);
      const auto finish = [&](void* out, DType stored) {
        base::NormBins norm;
        sums.Finish({.out = out,
                     .dtype = stored,
                     .rounded_to = dtype,
                     .divisor = 10.0f,
                     .norm = &norm,
                     .norm_weight = 0.5});
        EXPECT_TRUE(std::ranges::equal(norm.bins(), expected_norm.bins()));
      };
      std::vector<std::byte> stored(expected.size());
      finish(stored.data(), dtype);
      EXPECT_TRUE(SameBits(stored, expected));
      std::vector<float> in_fp32(kElems);
      finish(in_fp32.data(), DType::kFloat32);
      EXPECT_TRUE(SameBits(in_fp32, widened));
      finish(sums.level(0).data(), DType::kFloat32);
      EXPECT_TRUE(SameBits(sums.level(0), widened));
      sums.Add(5, dtype);
      finish(sums.level(0).data(), dtype);
      EXPECT_TRUE(
          SameBits(std::as_bytes(std::span(sums.level(0))).first(expected.size()), expected));
    }
  }
}

// A sum in fp16 would stop at 2048.
TEST(TreeSum, FourThousandOnesSumToFourThousand) {
  for (const int levels : {1, 13}) {
    std::vector<std::vector<float>> sums(levels, std::vector<float>(256));
    std::vector<float*> places;
    for (auto& level : sums) places.push_back(level.data());
    const std::vector<uint16_t> ones(256, base::FloatToFloat16(1.0f));
    const void* addends[] = {ones.data()};
    TreeSum tree_sum(1);
    for (int64_t round = 0; round < 4096; ++round) {
      tree_sum.Run({.addends = addends,
                    .dtype = DType::kFloat16,
                    .elems = 256,
                    .sums = {.levels = places, .round = round}});
    }
    std::vector<uint16_t> sum(256);
    tree_sum.Finish({.levels = places, .round = 4095}, 4096, 256,
                    {.out = sum.data(), .dtype = DType::kFloat16, .rounded_to = DType::kFloat16});
    for (const uint16_t bits : sum) ASSERT_EQ(base::Float16ToFloat(bits), 4096.0f);
  }
}

}  // namespace
}  // namespace zerohold::comm
