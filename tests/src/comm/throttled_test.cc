// How long verbs take over a slow link: at least what it needs for what a rank sends.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "src/comm/self_communicator.h"
#include "src/comm/thread_communicator.h"
#include "src/comm/throttled_communicator.h"

namespace zerohold::comm {
namespace {

double SecondsOf(const auto& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Runs `body` on each of two ranks over links of their own.
void OnTwoRanks(const LinkSpec& link, const auto& body) {
  std::vector<std::jthread> threads;
  for (auto& rank : CreateThreadCommunicators(2)) {
    threads.emplace_back(
        [&body, own = CreateThrottledCommunicator(std::move(rank), link)] { body(*own); });
  }
}

TEST(ThrottledCommunicator, TakesTheTimeOfWhatARankSends) {
  OnTwoRanks({.rate = 1e6}, [](Communicator& ranks) {
    std::vector<std::byte> bytes(100'000);
    // Rank 0 sends 80 KB, rank 1 the rest.
    const Piece pieces[] = {{0, 0, 80'000}, {1, 80'000, 20'000}};
    const double gather_s =
        SecondsOf([&] { EXPECT_TRUE(ranks.AllGather({"AllGather"}, bytes.data(), pieces).ok()); });
    EXPECT_GE(gather_s, ranks.rank() == 0 ? 0.08 : 0.02);
    const double broadcast_s = SecondsOf(
        [&] { EXPECT_TRUE(ranks.Broadcast({"Broadcast"}, bytes.data(), 30'000, 1).ok()); });
    EXPECT_GE(broadcast_s, ranks.rank() == 1 ? 0.03 : 0.0);
    std::vector<float> addends(10'000, 1.0f);
    std::vector<float> mean(5'000);
    std::vector<std::byte> scratch(Communicator::ScratchBytes(5'000, DType::kFloat32, 2));
    ranks.SetScratch(scratch);
    const layout::Range shards[] = {{0, 5'000}, {5'000, 10'000}};
    const double reduce_s = SecondsOf([&] {
      EXPECT_TRUE(ranks
                      .ReduceScatter({"ReduceScatter"}, {.addends = addends.data(),
                                                         .shards = shards,
                                                         .mean = {.out = mean.data()}})
                      .ok());
    });
    EXPECT_GE(reduce_s, 0.02);
  });
}

TEST(ThrottledCommunicator, ADuplicateSharesTheLink) {
  OnTwoRanks({.rate = 1e6}, [](Communicator& ranks) {
    auto twin = ranks.Duplicate().value();
    std::vector<std::byte> bytes(40'000), others(40'000);
    const Piece pieces[] = {{0, 0, 20'000}, {1, 20'000, 20'000}};
    const double seconds = SecondsOf([&] {
      const std::jthread other(
          [&] { EXPECT_TRUE(twin->AllGather({"AllGather"}, others.data(), pieces).ok()); });
      EXPECT_TRUE(ranks.AllGather({"AllGather"}, bytes.data(), pieces).ok());
    });
    EXPECT_GE(seconds, 0.0399);
  });
}

TEST(ThrottledCommunicator, LatencyIsOfVerbsThatGoToOthers) {
  OnTwoRanks({.latency_s = 0.03}, [](Communicator& ranks) {
    int64_t one = 1;
    const double seconds = SecondsOf([&] {
      EXPECT_TRUE(ranks.AllReduce({"AllReduce"}, {}, {}, {&one, 1}).ok());
    });
    EXPECT_EQ(one, 2);
    EXPECT_GE(seconds, 0.03);
  });
  const auto alone = CreateThrottledCommunicator(CreateSelfCommunicator(), {.latency_s = 1000.0});
  int64_t one = 1;
  EXPECT_TRUE(alone->AllReduce({"AllReduce"}, {}, {}, {&one, 1}).ok());
}

TEST(ThrottledCommunicator, ACancelEndsTheWait) {
  OnTwoRanks({.latency_s = 1000.0}, [](Communicator& ranks) {
    const std::jthread other([&ranks] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      ranks.Cancel(absl::OkStatus());
    });
    int64_t one = 1;
    ranks.AllReduce({"AllReduce"}, {}, {}, {&one, 1}).IgnoreError();
    EXPECT_FALSE(ranks.AllReduce({"AllReduce"}, {}, {}, {&one, 1}).ok());
  });
}

}  // namespace
}  // namespace zerohold::comm
