// Random worlds, shards, dtypes, weights, absent ranks and numbers of micro-batches: a reduction
// and a gather give every rank the bits of the plainest code.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "src/comm/thread_communicator.h"
#include "tests/src/comm/addends.h"

namespace zerohold::comm {
namespace {

struct Trial {
  DType dtype;
  float divisor;
  bool check_order;
  std::vector<layout::Range> shards = {};
  std::vector<float> weights = {};
  int rounds = 1;
  int levels = 0;                 // 0 only for a single round
  std::vector<bool> absent = {};  // of each round's ranks

  int world() const { return static_cast<int>(shards.size()); }
};

Trial RandomTrial(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&random](int64_t n) { return static_cast<int64_t>(random() % n); };
  Trial trial{.dtype = static_cast<DType>(below(3)),
              .divisor = static_cast<float>(1 + below(12)),
              .check_order = below(2) == 0};
  const int64_t world = 1 + below(9);
  int64_t begin = 0;
  for (int64_t rank = 0; rank < world; ++rank) {
    const int64_t size = below(3) == 0 ? 0 : 256 * below(8) + below(2) * below(256);
    trial.shards.push_back({begin, begin + size});
    begin += size;
  }
  const int64_t weights = below(2) * world;
  for (int rank = 0; rank < weights; ++rank) trial.weights.push_back(AddendAt(rank, -1));
  trial.rounds = static_cast<int>(below(2) == 0 ? 1 : 1 + below(9));
  const int enough = std::bit_width(static_cast<unsigned>(trial.rounds));
  const int choices[] = {trial.rounds == 1 ? 0 : 1, 1, enough, enough + 1};
  trial.levels = choices[below(4)];
  for (int64_t i = 0; i < trial.rounds * world; ++i) trial.absent.push_back(below(5) == 0);
  return trial;
}

// Element i of the mean, before it is rounded.
float NaiveMean(const Trial& trial, int64_t i) {
  const int world = trial.world();
  const auto round = [&](int r) {
    const auto addend = [&](int rank) {
      const int k = r * world + rank;
      const float value = trial.absent[k] ? 0.0f : StoredAddendAt(trial.dtype, k, i);
      return trial.weights.empty() ? value : trial.weights[rank] * value;
    };
    return NaiveTree(addend, 0, world);
  };
  if (trial.levels > 1) return NaiveTree(round, 0, trial.rounds) / trial.divisor;
  float sum = round(0);
  for (int r = 1; r < trial.rounds; ++r) sum += round(r);
  return sum / trial.divisor;
}

void Reduce(Communicator& communicator, const Trial& trial, void* bucket) {
  const layout::Range own = trial.shards[communicator.rank()];
  std::vector<float> sums(trial.levels * own.size(), NAN);
  std::vector<float*> levels;
  for (int k = 0; k < trial.levels; ++k) levels.push_back(sums.data() + k * own.size());
  const Mean mean{.out = static_cast<std::byte*>(bucket) + own.begin * SizeOf(trial.dtype),
                  .dtype = trial.dtype,
                  .rounded_to = trial.dtype,
                  .divisor = trial.divisor};
  for (int round = 0; round < trial.rounds; ++round) {
    const int mine = round * communicator.size() + communicator.rank();
    const auto addends = Addends(mine, trial.dtype, trial.shards.back().end);
    std::ranges::copy(addends, static_cast<std::byte*>(bucket));
    ASSERT_EQ(communicator.ReduceScatter({.verb = "ReduceScatter"},
                                         {.addends = trial.absent[mine] ? nullptr : bucket,
                                          .dtype = trial.dtype,
                                          .shards = trial.shards,
                                          .weights = trial.weights,
                                          .sums = {.levels = levels, .round = round},
                                          .mean = mean}),
              absl::OkStatus());
  }
  if (trial.levels > 0) {
    communicator.FinishSum({.levels = levels}, trial.rounds, own.size(), mean);
  }
}

void PlayRank(Communicator& communicator, const Trial& trial, std::span<const std::byte> expected) {
  const int64_t elem_bytes = SizeOf(trial.dtype);
  std::vector<Piece> pieces;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const layout::Range& shard = trial.shards[rank];
    pieces.push_back({rank, shard.begin * elem_bytes, shard.size() * elem_bytes});
  }
  communicator.Configure({.timeout_s = 60.0, .check_order = trial.check_order});
  const std::vector<std::byte> scratch = Scratch(communicator, trial.shards, trial.dtype);
  std::vector<std::byte> bucket(expected.size());
  Reduce(communicator, trial, bucket.data());
  ASSERT_EQ(communicator.AllGather({.verb = "AllGather"}, bucket.data(), pieces), absl::OkStatus());
  EXPECT_TRUE(SameBits(bucket, expected));
}

TEST(CommunicatorProperty, ReductionAndGatherGiveTheNaiveMean) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Trial trial = RandomTrial(seed);
    const int64_t elems = trial.shards.back().end;
    std::vector<std::byte> expected(elems * SizeOf(trial.dtype));
    for (int64_t i = 0; i < elems; ++i) {
      Put(NaiveMean(trial, i), trial.dtype, expected.data(), i);
    }
    std::vector<std::jthread> threads;
    for (auto& rank : CreateThreadCommunicators(trial.world())) {
      threads.emplace_back([&, own = std::move(rank)] { PlayRank(*own, trial, expected); });
    }
  }
}

}  // namespace
}  // namespace zerohold::comm
