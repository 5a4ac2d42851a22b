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
class AllVerbs {
 public:
  explicit AllVerbs(comm::Communicator& communicator)
      : communicator_(communicator),
        scratch_(
            comm::Communicator::ScratchBytes(kShardElems, DType::kFloat32, communicator.size())),
        bucket_(communicator.size() * kShardElems, 1.0f) {
    communicator.SetScratch(scratch_);
    communicator.Configure({.check_order = true});
    for (int rank = 0; rank < communicator.size(); ++rank) {
      shards_.push_back({rank * kShardElems, (rank + 1) * kShardElems});
      pieces_.push_back({rank, rank * kShardElems * 4, kShardElems * 4});
    }
    for (int level = 0; level < kLevels; ++level) levels_[level] = &sums_[level * kShardElems];
  }

  void Run() {
    int64_t words[] = {1, 2, 3};
    base::NormBins norm;
    const comm::Mean mean{.out = &bucket_[shards_[communicator_.rank()].begin], .norm = &norm};
    for (int64_t i = 0; i < 10; ++i) {
      const Label label{.verb = "Verb", .item = "bucket", .index = i, .of = "a unit's long name"};
      const comm::RunningSums sums{.levels = levels_, .round = i};
      Expect(communicator_.ReduceScatter(
          label, {.addends = bucket_.data(), .shards = shards_, .mean = mean}));
      Expect(communicator_.ReduceScatter(label, {.shards = shards_, .sums = sums}));
      communicator_.FinishSum(sums, i + 1, kShardElems, mean);
      Expect(communicator_.AllGather(label, bucket_.data(), pieces_));
      Expect(communicator_.Broadcast(label, bucket_.data(), 4096, 1));
      Expect(communicator_.AllReduce(label, {words, 1}, {words + 1, 1}, {words + 2, 1}));
      Expect(comm::Agree(communicator_, absl::OkStatus()));
    }
  }

 private:
  static constexpr int64_t kShardElems = 1024;
  static constexpr int kLevels = 4;
  static void Expect(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

  comm::Communicator& communicator_;
  std::vector<std::byte> scratch_;
  std::vector<float> bucket_;
  std::vector<float> sums_ = std::vector<float>(kLevels * kShardElems);
  float* levels_[kLevels];
  std::vector<layout::Range> shards_;
  std::vector<comm::Piece> pieces_;
};

TEST(ThreadCommunicator, WarmVerbsAllocateNothing) {
  constexpr int kWorld = 3;
  auto communicators = comm::CreateThreadCommunicators(kWorld);
  std::barrier warm(kWorld);
  int64_t before = 0;
  int64_t after = 0;
  const auto play = [&](int rank) {
    AllVerbs verbs(*communicators[rank]);
    verbs.Run();
    warm.arrive_and_wait();
    if (rank == 0) before = NewCalls();
    warm.arrive_and_wait();
    verbs.Run();
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

TEST(GatherAll, GivesEveryRanksValueByRank) {
  auto communicators = comm::CreateThreadCommunicators(3);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([rank, own = communicators[rank]] {
      const auto all = comm::GatherAll(*own, "tens", 10 * rank);
      ASSERT_TRUE(all.ok()) << all.status();
      EXPECT_THAT(*all, testing::ElementsAre(0, 10, 20));
    });
  }
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
