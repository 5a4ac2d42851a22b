// What the suite of all transports does not ask: labels, allocations, the public handles.
#include "src/comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <thread>
#include <vector>

#include "src/comm/thread_communicator.h"
#include "tests/src/device/count_new.h"
#include "zerohold/communicator.h"

namespace zerohold {
namespace {

using comm::Label;

TEST(Label, SaysVerbItemIndexAndOwner) {
  EXPECT_EQ(ToString(Label{.verb = "ReduceScatter", .item = "bucket", .index = 3, .of = "block.0"}),
            "ReduceScatter of bucket 3 of block.0");
  EXPECT_EQ(ToString(Label{.verb = "Read", .item = "parameter", .of = "wte"}),
            "Read of parameter wte");
  EXPECT_EQ(ToString(Label{.verb = "AllGather", .item = "bucket", .index = 0}),
            "AllGather of bucket 0");
  EXPECT_EQ(ToString(Label{.verb = "Agree", .of = "options"}), "Agree of options");
  EXPECT_EQ(ToString(Label{.verb = "Agree"}), "Agree");
  const std::string long_name(1000, 'x');
  EXPECT_EQ(ToString(Label{.verb = "Read", .of = long_name}), "Read of " + long_name);
}

// Every verb, a few times, with the largest operands.
void RunVerbs(comm::Communicator& communicator, std::vector<float>& bucket,
              std::span<const layout::Range> shards, std::span<const comm::Piece> pieces) {
  int64_t words[] = {1, 2, 3};
  for (int64_t i = 0; i < 10; ++i) {
    base::NormBins norm;
    const Label label{.verb = "Verb", .item = "bucket", .index = i, .of = "a unit's long name"};
    float* own = bucket.data() + shards[communicator.rank()].begin;
    ASSERT_TRUE(
        communicator
            .ReduceScatter(label,
                           {.addends = bucket.data(), .shards = shards, .out = own, .norm = &norm})
            .ok());
    ASSERT_TRUE(communicator.AllGather(label, bucket.data(), pieces).ok());
    ASSERT_TRUE(communicator.Broadcast(label, bucket.data(), 4096, 1).ok());
    ASSERT_TRUE(communicator.AllReduce(label, {words, 1}, {words + 1, 1}, {words + 2, 1}).ok());
    ASSERT_TRUE(comm::Agree(communicator, absl::OkStatus()).ok());
  }
}

TEST(ThreadCommunicator, WarmVerbsAllocateNothing) {
  constexpr int kWorld = 3;
  constexpr int64_t kShardElems = 1024;
  std::vector<layout::Range> shards;
  std::vector<comm::Piece> pieces;
  for (int rank = 0; rank < kWorld; ++rank) {
    shards.push_back({rank * kShardElems, (rank + 1) * kShardElems});
    pieces.push_back({rank, rank * kShardElems * 4, kShardElems * 4});
  }
  auto communicators = comm::CreateThreadCommunicators(kWorld);
  std::barrier warm(kWorld);
  int64_t before = 0;
  int64_t after = 0;
  const auto play = [&](int rank) {
    comm::Communicator& communicator = *communicators[rank];
    std::vector<std::byte> scratch(
        comm::Communicator::ScratchBytes(kShardElems, DType::kFloat32, kWorld));
    std::vector<float> bucket(kWorld * kShardElems, 1.0f);
    communicator.SetScratch(scratch);
    communicator.Configure({.check_order = true});
    RunVerbs(communicator, bucket, shards, pieces);
    warm.arrive_and_wait();
    if (rank == 0) before = NewCalls();
    warm.arrive_and_wait();
    RunVerbs(communicator, bucket, shards, pieces);
    warm.arrive_and_wait();
    if (rank == 0) after = NewCalls();
    warm.arrive_and_wait();
  };
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < kWorld; ++rank) threads.emplace_back(play, rank);
  threads.clear();
  EXPECT_EQ(after - before, 0);
}

TEST(ThreadCommunicator, ARankThatGoesAwayIsTimedOut) {
  auto communicators = comm::CreateThreadCommunicators(2);
  communicators[1].reset();
  communicators[0]->Configure({.timeout_s = 0.05});
  int64_t word = 0;
  const absl::Status status = communicators[0]->Broadcast({.verb = "Broadcast"}, &word, 8, 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("for rank 1;"));
}

TEST(FrontDoor, SelfIsAWorldOfOne) {
  Communicator self = SelfCommunicator();
  EXPECT_EQ(self.rank(), 0);
  EXPECT_EQ(self.size(), 1);
  EXPECT_EQ(self.local_rank(), 0);
  EXPECT_EQ(self.local_size(), 1);
  EXPECT_EQ(self.Agree(absl::OkStatus()), absl::OkStatus());
  EXPECT_EQ(self.Agree(absl::DataLossError("torn")), absl::DataLossError("rank 0: torn"));
}

TEST(FrontDoor, ThreadsPlayRanks) {
  std::vector<Communicator> ranks = ThreadCommunicators(3);
  ASSERT_EQ(ranks.size(), 3u);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([rank, own = ranks[rank]]() mutable {
      EXPECT_EQ(own.rank(), rank);
      EXPECT_EQ(own.size(), 3);
      EXPECT_EQ(own.local_rank(), rank);
      EXPECT_EQ(own.local_size(), 3);
      EXPECT_EQ(own.Agree(rank == 1 ? absl::DataLossError("torn") : absl::OkStatus()),
                absl::DataLossError("rank 1: torn"));
    });
  }
}

}  // namespace
}  // namespace zerohold
