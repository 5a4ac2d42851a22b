// The suite: reductions of what is absent, weighted, or spread over micro-batches.
#include <bit>
#include <cmath>
#include <vector>

#include "tests/src/comm/addends.h"
#include "tests/src/comm/conformance.h"

namespace zerohold::comm {
namespace {

constexpr Label kLabel{.verb = "ReduceScatter"};
constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

// Ranks whose bit is set in `absent` bring nothing.
void CheckAbsent(Communicator& communicator, DType dtype, std::span<const layout::Range> shards,
                 int absent) {
  const layout::Range own = shards[communicator.rank()];
  const bool comes = (absent >> communicator.rank() & 1) == 0;
  const std::vector<std::byte> addends = Addends(communicator.rank(), dtype, shards.back().end);
  std::vector<float> sum(own.size());
  ASSERT_EQ(communicator.ReduceScatter(kLabel, {.addends = comes ? addends.data() : nullptr,
                                                .dtype = dtype,
                                                .shards = shards,
                                                .mean = {.out = sum.data()}}),
            absl::OkStatus());
  std::vector<float> expected(own.size());
  for (int64_t i = own.begin; i < own.end; ++i) {
    const auto addend = [&](int rank) {
      return absent >> rank & 1 ? 0.0f : StoredAddendAt(dtype, rank, i);
    };
    expected[i - own.begin] = NaiveTree(addend, 0, communicator.size());
  }
  EXPECT_TRUE(SameBits(sum, expected)) << NameOf(dtype) << " absent " << absent;
}

// Some ranks, all, none; with one scratch for shards of all sizes, which must stay clean.
TEST_P(CommunicatorConformance, NullAddendsCountAsZero) {
  Run([](Communicator& communicator) {
    const int world = communicator.size();
    const std::vector<std::byte> scratch =
        Scratch(communicator, Shards(world, 6002, /*uneven=*/false), DType::kFloat32);
    for (const int64_t elems : {3001, 7, 1009}) {
      for (const DType dtype : kDTypes) {
        for (const int absent : {1, 2, 0b1010, (1 << world) - 1, (1 << world) - 2, 0}) {
          CheckAbsent(communicator, dtype, Shards(world, elems, true), absent);
          CheckAbsent(communicator, dtype, Shards(world, 2 * elems, false), absent);
        }
      }
    }
  });
}

TEST_P(CommunicatorConformance, EveryRankHasItsWeight) {
  Run([](Communicator& communicator) {
    std::vector<float> weights;
    for (int rank = 0; rank < communicator.size(); ++rank) weights.push_back(AddendAt(rank, -1));
    for (const DType dtype : kDTypes) {
      const auto shards = Shards(communicator.size(), 1009, /*uneven=*/false);
      const layout::Range own = shards[communicator.rank()];
      const std::vector<std::byte> scratch = Scratch(communicator, shards, dtype);
      const auto addends = Addends(communicator.rank(), dtype, shards.back().end);
      std::vector<float> sum(own.size());
      ASSERT_EQ(communicator.ReduceScatter(kLabel, {.addends = addends.data(),
                                                    .dtype = dtype,
                                                    .shards = shards,
                                                    .weights = weights,
                                                    .mean = {.out = sum.data()}}),
                absl::OkStatus());
      std::vector<float> expected(own.size());
      for (int64_t i = own.begin; i < own.end; ++i) {
        const auto addend = [&](int rank) {
          return weights[rank] * StoredAddendAt(dtype, rank, i);
        };
        expected[i - own.begin] = NaiveTree(addend, 0, communicator.size());
      }
      EXPECT_TRUE(SameBits(sum, expected)) << NameOf(dtype);
    }
  });
}

// The mean of so many micro-batches, where i belongs to rank i mod world; in the last round some
// ranks may have none. Of the own shard, as bf16 in place of level 0.
std::vector<float> MeanOf(Communicator& communicator, std::span<const layout::Range> shards,
                          int micro_batches) {
  const int world = communicator.size();
  const int64_t elems = shards[communicator.rank()].size();
  const int rounds = (micro_batches + world - 1) / world;
  std::vector<std::vector<float>> sums(std::bit_width(static_cast<unsigned>(rounds)),
                                       std::vector<float>(elems, NAN));
  std::vector<float*> levels;
  for (auto& level : sums) levels.push_back(level.data());
  for (int round = 0; round < rounds; ++round) {
    const int mine = round * world + communicator.rank();
    const auto addends = Addends(mine, DType::kBFloat16, shards.back().end);
    EXPECT_EQ(communicator.ReduceScatter(
                  kLabel, {.addends = mine < micro_batches ? addends.data() : nullptr,
                           .dtype = DType::kBFloat16,
                           .shards = shards,
                           .sums = {.levels = levels, .round = round}}),
              absl::OkStatus());
  }
  communicator.FinishSum({.levels = levels, .round = rounds - 1}, rounds, elems,
                         {.out = levels[0],
                          .rounded_to = DType::kBFloat16,
                          .divisor = static_cast<float>(micro_batches)});
  return sums[0];
}

// Worlds of 1, 2 and 4 give the bits of one tree over the micro-batches, whole rounds or not.
TEST_P(CommunicatorConformance, MicroBatchesAreOneTree) {
  Run([](Communicator& communicator) {
    const int world = communicator.size();
    if (!std::has_single_bit(static_cast<unsigned>(world))) return;
    const auto shards = Shards(world, 600, /*uneven=*/false);
    const layout::Range own = shards[communicator.rank()];
    const std::vector<std::byte> scratch = Scratch(communicator, shards, DType::kBFloat16);
    for (int micro_batches = 1; micro_batches <= 13; ++micro_batches) {
      std::vector<float> expected(own.size());
      for (int64_t i = own.begin; i < own.end; ++i) {
        const auto addend = [i](int k) { return StoredAddendAt(DType::kBFloat16, k, i); };
        const float mean = NaiveTree(addend, 0, micro_batches) / static_cast<float>(micro_batches);
        expected[i - own.begin] = base::BFloat16ToFloat(base::FloatToBFloat16(mean));
      }
      EXPECT_TRUE(SameBits(MeanOf(communicator, shards, micro_batches), expected)) << micro_batches;
    }
  });
}

}  // namespace
}  // namespace zerohold::comm
