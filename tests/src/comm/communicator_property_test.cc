// Random worlds, shards, dtypes and message limits: a reduction and a gather give every rank the
// bits of the plainest code.
#include <gtest/gtest.h>

#include <algorithm>
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
  std::vector<layout::Range> shards;
};

Trial RandomTrial(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&random](int64_t n) { return static_cast<int64_t>(random() % n); };
  Trial trial{.dtype = static_cast<DType>(below(3)),
              .divisor = static_cast<float>(1 + below(12)),
              .check_order = below(2) == 0,
              .shards = {}};
  const int64_t world = 1 + below(9);
  int64_t begin = 0;
  for (int64_t rank = 0; rank < world; ++rank) {
    const int64_t size = below(3) == 0 ? 0 : 256 * below(8) + below(2) * below(256);
    trial.shards.push_back({begin, begin + size});
    begin += size;
  }
  return trial;
}

void PlayRank(Communicator& communicator, const Trial& trial, std::span<const std::byte> expected) {
  const int64_t elem_bytes = SizeOf(trial.dtype);
  int64_t longest = 0;
  std::vector<Piece> pieces;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    const layout::Range& shard = trial.shards[rank];
    longest = std::max(longest, shard.size());
    pieces.push_back({rank, shard.begin * elem_bytes, shard.size() * elem_bytes});
  }
  std::vector<std::byte> scratch(
      Communicator::ScratchBytes(longest, trial.dtype, communicator.size()));
  communicator.Configure({.timeout_s = 60.0, .check_order = trial.check_order});
  communicator.SetScratch(scratch);
  std::vector<std::byte> bucket =
      Addends(communicator.rank(), trial.dtype, trial.shards.back().end);
  ASSERT_EQ(
      communicator.ReduceScatter({.verb = "ReduceScatter"},
                                 {.addends = bucket.data(),
                                  .dtype = trial.dtype,
                                  .shards = trial.shards,
                                  .out = bucket.data() + pieces[communicator.rank()].offset_bytes,
                                  .divisor = trial.divisor}),
      absl::OkStatus());
  ASSERT_EQ(communicator.AllGather({.verb = "AllGather"}, bucket.data(), pieces), absl::OkStatus());
  EXPECT_TRUE(SameBits(bucket, expected));
}

TEST(CommunicatorProperty, ReductionAndGatherGiveTheNaiveMean) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const Trial trial = RandomTrial(seed);
    const int world = static_cast<int>(trial.shards.size());
    const std::vector<std::byte> expected =
        NaiveMean(world, trial.dtype, 0, trial.shards.back().end, trial.divisor);
    std::vector<std::jthread> threads;
    for (auto& rank : CreateThreadCommunicators(world)) {
      threads.emplace_back([&, own = std::move(rank)] { PlayRank(*own, trial, expected); });
    }
  }
}

}  // namespace
}  // namespace zerohold::comm
