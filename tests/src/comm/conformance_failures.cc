// The suite's second half: ranks that disagree, do not come, or give up; and verdicts.
#include <gmock/gmock.h>

#include <array>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/src/comm/conformance.h"

namespace zerohold::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Text(const absl::Status& status) { return std::string(status.message()); }

absl::Status Sum(Communicator& communicator, const Label& label, std::span<int64_t> sums) {
  return communicator.AllReduce(label, {}, {}, sums);
}

absl::Status Gather(Communicator& communicator, const Label& label, int64_t* values) {
  std::vector<Piece> pieces;
  for (int rank = 0; rank < communicator.size(); ++rank) pieces.push_back({rank, 8 * rank, 8});
  return communicator.AllGather(label, values, pieces);
}

constexpr Label kBucket{.verb = "ReduceScatter", .item = "bucket", .index = 3, .of = "block.0"};
constexpr Label kA{.verb = "AllGather", .item = "parameter", .of = "a"};
constexpr Label kB{.verb = "AllGather", .item = "parameter", .of = "b"};

TEST_P(CommunicatorConformance, COM_06_ACheckedOrderNamesBothOperations) {
  Run([](Communicator& communicator) {
    if (communicator.size() == 1) return;
    communicator.Configure({.check_order = true});
    std::vector<int64_t> values(communicator.size(), communicator.rank());
    const std::vector<int64_t> before = values;
    ASSERT_EQ(Gather(communicator, kA, values.data()), absl::OkStatus());
    values = before;
    const bool other = communicator.rank() == communicator.size() - 1;
    const absl::Status status = Gather(communicator, other ? kB : kA, values.data());
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(Text(status), AllOf(HasSubstr("rank 0 calls AllGather of parameter a"),
                                    HasSubstr("rank " + std::to_string(communicator.size() - 1) +
                                              " calls AllGather of parameter b")));
    EXPECT_EQ(values, before);
    EXPECT_EQ(Gather(communicator, kA, values.data()), status);  // broken for good
  });
}

TEST_P(CommunicatorConformance, COM_06_AnUncheckedOrderNeverSwapsValues) {
  Run([](Communicator& communicator) {
    if (communicator.size() == 1) return;
    std::vector<int64_t> values(communicator.size(), communicator.rank());
    const std::vector<int64_t> before = values;
    const bool other = communicator.rank() == 0;
    const absl::Status status = Gather(communicator, other ? kB : kA, values.data());
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(Text(status), AllOf(HasSubstr("AllGather of parameter a"),
                                    HasSubstr("AllGather of parameter b")));
    EXPECT_EQ(values[0], before[0]);
    if (other) {
      EXPECT_EQ(values, before);
    }
  });
}

TEST_P(CommunicatorConformance, AnotherRootIsFound) {
  Run([](Communicator& communicator) {
    if (communicator.size() == 1) return;
    int64_t value = 0;
    const int root = communicator.rank() == 0 ? 0 : 1;
    const absl::Status status = communicator.Broadcast(kBucket, &value, sizeof(value), root);
    if (communicator.rank() < 2) {
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    }
  });
}

TEST_P(CommunicatorConformance, ACheckedOrderFindsOtherSizesUnderOneName) {
  Run([](Communicator& communicator) {
    if (communicator.size() == 1) return;
    communicator.Configure({.check_order = true});
    const int64_t bytes = communicator.rank() == 0 ? 8 : 4;
    int64_t value = 0;
    const absl::Status status = communicator.Broadcast(kBucket, &value, bytes, 0);
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
    EXPECT_THAT(Text(status), AllOf(HasSubstr("(8 bytes), rank 1"), HasSubstr("(4 bytes)"),
                                    HasSubstr("not the same")));
  });
}

// Without the check: too long, too short, and a difference of whole parts.
TEST_P(CommunicatorConformance, OtherSizesAreNeverSilent) {
  for (const auto& [first, others] : {std::pair{9, 8},
                                      {8, 9},
                                      {0, 8},
                                      {8, 0},
                                      {1000, 2000},
                                      {2000, 1000},
                                      {200000, 300000},
                                      {300000, 200000}}) {
    Run([first = first, others = others](Communicator& communicator) {
      if (communicator.size() == 1) return;
      communicator.Configure({.max_message_bytes = 8000});
      const bool is_first = communicator.rank() == 0;
      std::vector<int64_t> sums(is_first ? first : others);
      const absl::Status status = Sum(communicator, kBucket, sums);
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      EXPECT_THAT(Text(status), AllOf(HasSubstr("ReduceScatter of bucket 3 of block.0"),
                                      HasSubstr("bytes where rank ")));
    });
  }
}

// The same bytes in all, cut otherwise.
TEST_P(CommunicatorConformance, OtherPiecesAreNeverSilent) {
  for (const int64_t unit : {8, 8000}) {
    Run([unit](Communicator& communicator) {
      if (communicator.size() == 1) return;
      const bool other = communicator.rank() == 1;
      std::vector<std::byte> buffer(3 * unit);
      const Piece pieces[] = {{0, 0, other ? unit : 2 * unit},
                              {0, other ? unit : 2 * unit, other ? 2 * unit : unit}};
      const absl::Status status = communicator.AllGather(kBucket, buffer.data(), pieces);
      if (communicator.rank() < 2) {
        EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      }
    });
  }
}

TEST_P(CommunicatorConformance, CKP_20_AWaitNamesTheVerbAndTheMissingRanks) {
  Run([](Communicator& communicator) {
    const int world = communicator.size();
    if (world == 1) return;
    std::vector<int64_t> sums(10000, 1);
    ASSERT_EQ(Sum(communicator, kA, sums), absl::OkStatus());  // all are awake
    // Rank 1 does not come; of four or more ranks, the last neither.
    if (communicator.rank() == 1) return;
    if (world >= 4 && communicator.rank() == world - 1) return;
    communicator.Configure({.timeout_s = 1.0, .check_order = world % 2 == 0});
    const auto begin = std::chrono::steady_clock::now();
    const absl::Status status = Sum(communicator, kBucket, sums);
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_THAT(Text(status),
                AllOf(HasSubstr("ReduceScatter of bucket 3 of block.0: waited 1 s for rank 1" +
                                (world >= 4 ? ", " + std::to_string(world - 1) : "") + ";"),
                      HasSubstr("communication_timeout_s")));
    EXPECT_EQ(Sum(communicator, kBucket, sums), status);  // at once
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  });
}

// A rank that comes when the others have given up is told why, and reads nothing of theirs.
TEST_P(CommunicatorConformance, ALateRankHearsThatItWasLate) {
  Run([](Communicator& communicator) {
    if (communicator.size() == 1) return;
    const bool late = communicator.rank() == 1;
    const int64_t words = communicator.size() % 2 == 0 ? 100000 : 1;
    std::vector<int64_t> sums(words, 1);
    ASSERT_EQ(Sum(communicator, kA, sums), absl::OkStatus());  // all are awake
    communicator.Configure({.timeout_s = late ? 60.0 : 0.3});
    if (late) std::this_thread::sleep_for(std::chrono::milliseconds(700));
    sums.assign(words, 1);
    const absl::Status status = Sum(communicator, kBucket, sums);
    if (late && words == 1 && status.ok()) {
      // Short messages may have been on their way already.
      EXPECT_EQ(sums[0], communicator.size());
      return;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_THAT(Text(status), HasSubstr("waited 0.3 s for rank 1"));
  });
}

TEST_P(CommunicatorConformance, CancelEndsAWaitAndAllLaterVerbs) {
  Run([](Communicator& communicator) {
    if (communicator.size() > 1 && communicator.rank() == 0) return;
    communicator.Configure({.timeout_s = 60.0});
    const auto begin = std::chrono::steady_clock::now();
    std::jthread canceller([&communicator] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      communicator.Cancel(absl::OkStatus());
    });
    int64_t value = 1;
    absl::Status status = communicator.Broadcast(kBucket, &value, sizeof(value), 0);
    canceller.join();
    if (communicator.size() > 1) {
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
    }
    status = communicator.Broadcast(kBucket, &value, sizeof(value), 0);
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
    EXPECT_THAT(Text(status), HasSubstr("ReduceScatter of bucket 3"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  });
}

// Whoever waits for a rank that has given up, in a verb or between two, hears it at once.
TEST_P(CommunicatorConformance, PeersOfACancelledRankDoNotWait) {
  for (const bool inside_verb : {true, false}) {
    Run([inside_verb](Communicator& communicator) {
      if (communicator.size() == 1) return;
      communicator.Configure({.timeout_s = 60.0});
      std::vector<int64_t> sums(100000, 1);
      ASSERT_EQ(Sum(communicator, kA, sums), absl::OkStatus());
      if (communicator.rank() == 0) {
        communicator.Cancel(absl::OkStatus());
        if (inside_verb) {
          EXPECT_EQ(Sum(communicator, kB, sums).code(), absl::StatusCode::kCancelled);
        }
        return;
      }
      const auto begin = std::chrono::steady_clock::now();
      const absl::Status status = Sum(communicator, kBucket, sums);
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      EXPECT_THAT(Text(status), AllOf(HasSubstr("ReduceScatter of bucket 3 of block.0: rank 0 "),
                                      HasSubstr("rank 0 has given up: it closed its engine")));
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
    });
  }
}

// Rank 0 leaves one communicator, the last rank hears of it there and gives up the duplicate: those
// who wait in the duplicate hear of rank 0, not of the one that told them.
TEST_P(CommunicatorConformance, COM_02_TheFirstToLeaveIsPassedOn) {
  Run([](Communicator& communicator) {
    const int last = communicator.size() - 1;
    if (last < 2) return;
    communicator.Configure({.timeout_s = 60.0});
    const auto twin = communicator.Duplicate();
    ASSERT_TRUE(twin.ok()) << twin.status();
    int64_t value = 0;
    if (communicator.rank() == 0) {
      communicator.Cancel(absl::OkStatus());
      EXPECT_TRUE(absl::IsCancelled(communicator.Broadcast(kA, &value, sizeof(value), 0)));
    } else if (communicator.rank() == last) {
      const absl::Status lost = communicator.Broadcast(kA, &value, sizeof(value), 0);
      EXPECT_THAT(Text(lost), HasSubstr("rank 0 has given up"));
      (*twin)->Cancel(lost);
      EXPECT_TRUE(absl::IsCancelled((*twin)->Broadcast(kB, &value, sizeof(value), last)));
    } else {
      EXPECT_EQ((*twin)->Broadcast(kB, &value, sizeof(value), last),
                absl::AbortedError("AllGather of parameter b: rank 0 has given up: it closed its "
                                   "engine in mid-step, or exited"));
    }
  });
}

// What is not this rank's own wish is told as it is, and once.
TEST_P(CommunicatorConformance, PeersHearWhyARankWasCancelled) {
  Run([](Communicator& communicator) {
    if (communicator.size() == 1) return;
    communicator.Configure({.timeout_s = 60.0});
    int64_t value = 0;
    if (communicator.rank() == 0) communicator.Cancel(absl::InternalError("the cause"));
    const absl::Status status = communicator.Broadcast(kBucket, &value, sizeof(value), 0);
    if (communicator.rank() == 0) return;
    EXPECT_EQ(status,
              absl::AbortedError("ReduceScatter of bucket 3 of block.0: rank 0 failed: the cause"));
  });
}

TEST_P(CommunicatorConformance, AgreeGivesTheLowestFailureToAll) {
  Run([](Communicator& communicator) {
    const int world = communicator.size();
    EXPECT_EQ(Agree(communicator, absl::OkStatus()), absl::OkStatus());
    for (int first = 0; first < world; ++first) {
      const bool fails = communicator.rank() >= first;
      const std::string own_text = "cause " + std::to_string(communicator.rank());
      const absl::Status mine = fails ? absl::ResourceExhaustedError(own_text) : absl::OkStatus();
      const std::string rank = std::to_string(first);
      EXPECT_EQ(Agree(communicator, mine),
                absl::ResourceExhaustedError("rank " + rank + ": cause " + rank));
    }
    EXPECT_EQ(Agree(communicator, absl::OkStatus()), absl::OkStatus());
  });
}

TEST_P(CommunicatorConformance, AgreeOnTextShowsTheFirstDifference) {
  Run([](Communicator& communicator) {
    const int last = communicator.size() - 1;
    EXPECT_EQ(AgreeOnText(communicator, "options", "a\nb\nc"), absl::OkStatus());
    EXPECT_EQ(AgreeOnText(communicator, "options", ""), absl::OkStatus());
    if (last == 0) return;
    const bool other = communicator.rank() == last;
    const std::string rank = std::to_string(last);
    EXPECT_EQ(
        AgreeOnText(communicator, "options", other ? "a\nx\nc" : "a\nb\nc"),
        absl::FailedPreconditionError("options: rank 0 has \"b\", rank " + rank + " has \"x\""));
    EXPECT_EQ(
        AgreeOnText(communicator, "options", other ? "a\nb\n" : "a\nb\nc"),
        absl::FailedPreconditionError("options: rank 0 has \"c\", rank " + rank + " has nothing"));
    EXPECT_EQ(AgreeOnText(communicator, "options", "a"), absl::OkStatus());
  });
}

}  // namespace
}  // namespace zerohold::comm
