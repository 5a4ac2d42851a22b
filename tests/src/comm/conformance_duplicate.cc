// The suite: communicators over the same ranks that know nothing of each other.
#include <gmock/gmock.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tests/src/comm/addends.h"
#include "tests/src/comm/conformance.h"

namespace zerohold::comm {
namespace {

using testing::HasSubstr;

constexpr Label kSame{.verb = "Verb", .item = "bucket", .index = 3};

std::shared_ptr<Communicator> Twin(Communicator& communicator) {
  auto twin = communicator.Duplicate();
  EXPECT_TRUE(twin.ok()) << twin.status();
  return *std::move(twin);
}

// The sum over ranks of rank + which.
void CheckSum(Communicator& communicator, int64_t which, int64_t words = 1) {
  const int64_t world = communicator.size();
  std::vector<int64_t> sums(words, communicator.rank() + which);
  ASSERT_EQ(communicator.AllReduce(kSame, {}, {}, sums), absl::OkStatus());
  EXPECT_EQ(sums, std::vector<int64_t>(words, world * (world - 1) / 2 + world * which));
}

// One reduction and one gather of values that no other `which` has, in messages short and long.
void CheckVerbs(Communicator& communicator, int which, int64_t elems) {
  const int world = communicator.size();
  const auto shards = Shards(world, elems, /*uneven=*/false);
  const std::vector<std::byte> scratch = Scratch(communicator, shards, DType::kFloat32);
  std::vector<float> bucket(world * elems, static_cast<float>(which));
  std::vector<Piece> pieces;
  for (int rank = 0; rank < world; ++rank) pieces.push_back({rank, 4 * rank * elems, 4 * elems});
  float* own = &bucket[communicator.rank() * elems];
  ASSERT_EQ(communicator.ReduceScatter(
                kSame, {.addends = bucket.data(), .shards = shards, .mean = {.out = own}}),
            absl::OkStatus());
  ASSERT_EQ(communicator.AllGather(kSame, bucket.data(), pieces), absl::OkStatus());
  EXPECT_EQ(bucket, std::vector<float>(world * elems, static_cast<float>(world * which)));
}

// The same calls under the same names on both, each from its own thread. Ranks enter them in
// different orders: on even ranks the one comes first, on odd ranks the other.
TEST_P(CommunicatorConformance, TwinsRunAtTheSameTimeInAnyOrder) {
  Run([](Communicator& communicator) {
    const std::shared_ptr<Communicator> twin = Twin(communicator);
    const auto play = [](Communicator& own, int which) {
      for (int i = 0; i < 12; ++i) {
        if ((own.rank() + which + i) % 2 == 0) {
          std::this_thread::sleep_for(std::chrono::milliseconds(i % 4));
        }
        CheckVerbs(own, 1000 * which + i, i % 3 == 0 ? 64 : 5000);
        CheckSum(own, 1000 * which + i);
      }
    };
    std::jthread other([&] { play(*twin, 1); });
    play(communicator, 2);
  });
}

// One of them waits in the middle of an operation, on a rank that comes last, while the other
// works.
TEST_P(CommunicatorConformance, ATwinDoesNotWaitForTheOther) {
  Run([](Communicator& communicator) {
    const std::shared_ptr<Communicator> twin = Twin(communicator);
    std::jthread waits;
    if (communicator.rank() != 0) waits = std::jthread([&] { CheckSum(communicator, 1, 5000); });
    for (int i = 0; i < 10; ++i) CheckSum(*twin, 1000 + i, 5000);
    if (communicator.rank() == 0) CheckSum(communicator, 1, 5000);
  });
}

TEST_P(CommunicatorConformance, ATwinHasTheSettingsAndTheRanks) {
  Run([](Communicator& communicator) {
    telemetry::Counters<Traffic> sent;
    communicator.Configure(
        {.timeout_s = 12.5, .check_order = true, .max_message_bytes = 1000, .sent_bytes = &sent});
    const std::shared_ptr<Communicator> twin = Twin(communicator);
    EXPECT_EQ(twin->settings().timeout_s, 12.5);
    EXPECT_TRUE(twin->settings().check_order);
    EXPECT_EQ(twin->settings().max_message_bytes, 1000);
    EXPECT_EQ(twin->settings().sent_bytes, &sent);
    EXPECT_EQ(twin->rank(), communicator.rank());
    EXPECT_EQ(twin->size(), communicator.size());
    EXPECT_EQ(twin->local_rank(), communicator.local_rank());
    EXPECT_EQ(twin->local_size(), communicator.local_size());
    EXPECT_EQ(twin->any_thread(), communicator.any_thread());
    twin->Configure({.timeout_s = 1});
    EXPECT_EQ(communicator.settings().timeout_s, 12.5);
  });
}

TEST_P(CommunicatorConformance, TwinsOfTwinsAreAllDifferentAndOutliveThem) {
  Run([](Communicator& communicator) {
    std::vector<std::shared_ptr<Communicator>> twins{Twin(communicator), Twin(communicator)};
    twins.push_back(Twin(*twins[0]));
    twins.push_back(Twin(communicator));
    {
      std::vector<std::jthread> threads;
      for (int k = 0; k < 4; ++k) {
        threads.emplace_back([&own = *twins[k], k] {
          for (int i = 0; i < 10; ++i) CheckSum(own, 100 * k + i);
        });
      }
    }
    twins[0].reset();
    CheckSum(*twins[2], 7);
  });
}

TEST_P(CommunicatorConformance, CancelOfOneLeavesItsTwinsAlone) {
  Run([](Communicator& communicator) {
    communicator.Configure({.timeout_s = 60.0});
    const std::shared_ptr<Communicator> first = Twin(communicator);
    const std::shared_ptr<Communicator> second = Twin(communicator);
    std::vector<int64_t> sums(5000, 1);
    std::jthread other([&] {
      for (int i = 0; i < 50; ++i) CheckSum(*second, i, 5000);
    });
    if (communicator.rank() == 0) first->Cancel(absl::OkStatus());
    const absl::Status status = first->AllReduce(kSame, {}, {}, sums);
    EXPECT_EQ(status.code(),
              communicator.rank() == 0 ? absl::StatusCode::kCancelled : absl::StatusCode::kAborted);
    EXPECT_EQ(first->Duplicate().status(), status);
    for (int i = 0; i < 10; ++i) CheckSum(communicator, i, 5000);
    other.join();
    CheckSum(*Twin(*second), 1);
  });
}

TEST_P(CommunicatorConformance, ADuplicateDoesNotWaitForEver) {
  Run([](Communicator& communicator) {
    if (communicator.size() == 1 || communicator.rank() == 1) return;
    communicator.Configure({.timeout_s = 0.1});
    const absl::Status status = communicator.Duplicate().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(std::string(status.message()), HasSubstr("Duplicate: waited 0.1 s for rank 1;"));
  });
}

}  // namespace
}  // namespace zerohold::comm
