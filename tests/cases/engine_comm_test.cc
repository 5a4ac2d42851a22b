// Ranks that leave, come late or call something else, by the ids of the cases: nobody hangs, and
// everybody is told who and what.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <stdexcept>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using Clock = std::chrono::steady_clock;

std::string Text(const Status& status) { return std::string(status.message()); }

// A peer was lost: by the deadline, or sooner when another one told so.
void ExpectLost(const Status& status, const std::string& peer) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsAborted(status)) << status;
  EXPECT_THAT(Text(status), HasSubstr(peer));
}

// Where in step 3 rank 1 leaves.
enum class Leaves { kBeforeAnyReport, kInTheGradient, kAfterAReport, kByClosing };

// Rank 1 throws out of its trainer: the engine goes away on the way, without waiting for a peer.
void LeaveInStep3(const EngineOptions& options, const Communicator& ranks, Leaves where) {
  Trainer trainer(options, ranks, TensorsInUnits({300, 2000, 50}), Constant(1));
  for (int step = 1; step < 3; ++step) trainer.Step(Gradients({{1}, {2}, {3}}));
  if (where == Leaves::kBeforeAnyReport) throw std::runtime_error("rank 1, step 3");
  EXPECT_TRUE(trainer.engine().BeginMicroBatch().ok());
  trainer.Backward(2, Gradients({{}, {}, {3}}));
  if (where == Leaves::kAfterAReport) throw std::runtime_error("rank 1, step 3");
  if (where == Leaves::kByClosing) {
    EXPECT_TRUE(trainer.engine().Close().ok());
    throw std::runtime_error("rank 1, step 3");
  }
  trainer.Backward(1, [](ParameterId, std::span<const float>, std::span<float>) {
    throw std::runtime_error("rank 1, step 3");
  });
}

// The others are told which rank did not come, in the step and in every call after it.
void GoOnWithoutRank1(const EngineOptions& options, const Communicator& ranks) {
  Trainer trainer(options, ranks, TensorsInUnits({300, 2000, 50}), Constant(1));
  for (int step = 1; step < 3; ++step) trainer.Step(Gradients({{1}, {2}, {3}}));
  const Status status = trainer.TryStep(Gradients({{1}, {2}, {3}})).status();
  ExpectLost(status, "rank 1");
  EXPECT_THAT(Text(status), Not(ContainsRegex("rank [02] has given up")));  // it was told, too
  EXPECT_EQ(trainer.engine().BeginMicroBatch(), status);
  EXPECT_EQ(trainer.engine().Step().status(), status);
  float value = 0;
  EXPECT_EQ(trainer.engine().Read(0, StateKind::kMaster, 0, {&value, 1}), status);
  EXPECT_EQ(trainer.engine().Quiesce(), status);
  EXPECT_EQ(trainer.engine().Close(), status);
}

TEST(CommunicationCases, COM_02) {
  for (const Leaves where : {Leaves::kBeforeAnyReport, Leaves::kInTheGradient,
                             Leaves::kAfterAReport, Leaves::kByClosing}) {
    RunStages({3}, [where](EngineOptions options, int rank, Communicator ranks) {
      options.communication_timeout_s = where == Leaves::kBeforeAnyReport ? 0.7 : 60.0;
      options.bucket_elems = 256;
      if (rank != 1) return GoOnWithoutRank1(options, ranks);
      auto left = Clock::now();
      try {
        LeaveInStep3(options, ranks, where);
        ADD_FAILURE() << "rank 1 did not leave";
      } catch (const std::runtime_error& error) {
        EXPECT_STREQ(error.what(), "rank 1, step 3");
      }
      EXPECT_LT(Clock::now() - left, std::chrono::seconds(10));
    });
  }
}

// A rank that leaves does so at once, however long its reductions would wait for a peer.
TEST(CommunicationCases, COM_02_LeavingWaitsForNobody) {
  for (const int stage : {0, 1}) {
    std::promise<void> left;
    RunRanks(2, [&](int rank, const Communicator& ranks) {
      EngineOptions options = OptionsOfStage(stage);
      options.communication_timeout_s = 600.0;
      Trainer trainer(options, ranks, TensorsInUnits({300, 50}), Constant(1));
      EXPECT_TRUE(trainer.engine().BeginMicroBatch().ok());
      if (rank == 0) return left.get_future().wait();  // reports nothing meanwhile
      trainer.Backward(1, Gradients({{}, {1}}));
      const auto begin = Clock::now();
      EXPECT_TRUE(trainer.engine().Close().ok());
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
      left.set_value();
    });
  }
}

// All ranks call something else than rank 0. With the check or without, both calls are named long
// before the deadline, and no value is exchanged.
TEST(CommunicationCases, COM_06) {
  for (const bool check : {true, false}) {
    RunStages({2, 3}, [check](EngineOptions options, int rank, Communicator ranks) {
      if (options.zero_stage >= 2) return;  // the first reductions are over when they part
      options.check_collective_order = check;
      options.communication_timeout_s = 600.0;
      Trainer trainer(options, ranks, TensorsInUnits({300, 300}), Constant(1));
      trainer.MicroBatch(Gradients({{1}, {2}}), false);
      std::vector<float> out(300, -1.0f);
      const auto begin = Clock::now();
      const Status status = rank == 0 ? trainer.engine().Read(0, StateKind::kMoment1, 0, out)
                                      : trainer.engine().Step().status();
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      EXPECT_THAT(Text(status),
                  AllOf(HasSubstr("Agree"), HasSubstr("ReduceScatter of bucket 1 of unit_b")));
      if (check) {
        EXPECT_THAT(Text(status), AllOf(HasSubstr("rank 0 calls"), HasSubstr("rank 1 calls")));
      }
      EXPECT_EQ(out, std::vector<float>(300, -1.0f));
      EXPECT_EQ(trainer.engine().Step().status(), status);
    });
  }
}

// Stage 3: one rank acquires a and then b, the other b and then a, of equal shapes. Both are told
// the two gathers by name long before the deadline, and neither sees the other's values.
TEST(CommunicationCases, COM_06_AcquiresInAnotherOrder) {
  for (const bool check : {true, false}) {
    RunRanks(2, [check](int rank, const Communicator& ranks) {
      EngineOptions options = OptionsOfStage(3);
      options.check_collective_order = check;
      options.communication_timeout_s = 600.0;
      // Two more, so that neither a nor b is left in the frames after the first values.
      Trainer trainer(options, ranks, TensorsInUnits({300, 300, 300, 300}),
                      [](ParameterId id, int64_t) { return static_cast<float>(id + 1); });
      Engine& engine = trainer.engine();
      const auto begin = Clock::now();
      const UnitId first = rank == 0 ? 0 : 1;
      Status status = engine.Acquire(first, AcquireMode::kForward);
      if (status.ok()) {
        EXPECT_EQ(trainer.Values(first)[299], static_cast<float>(first + 1));
        status = engine.Acquire(1 - first, AcquireMode::kForward);
      }
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
      EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
      EXPECT_THAT(Text(status), AllOf(HasSubstr("of unit_a"), HasSubstr("of unit_b")));
      if (check) {
        EXPECT_THAT(Text(status), AllOf(HasSubstr("rank 0 calls"), HasSubstr("rank 1 calls")));
      }
      EXPECT_EQ(engine.Release(first), status);
      EXPECT_EQ(engine.Step().status(), status);
    });
  }
}

// Different arguments of one collective call are found in every mode, and training goes on.
TEST(CommunicationCases, COM_06_ReadsOfDifferentParameters) {
  RunStages({2, 3}, [](const EngineOptions& options, int rank, Communicator ranks) {
    Trainer trainer(options, ranks, TensorsInUnits({300, 300}),
                    [](ParameterId id, int64_t) { return static_cast<float>(id + 1); });
    std::vector<float> out(300, -1.0f);
    const Status status = trainer.engine().Read(rank == 0 ? 0 : 1, StateKind::kMoment1, 0, out);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Text(status), AllOf(HasSubstr("parameter a"), HasSubstr("parameter b")));
    EXPECT_EQ(out, std::vector<float>(300, -1.0f));
    EXPECT_TRUE(trainer.Step(Gradients({{1}, {2}})).applied);
  });
}

// A step that one rank does not come to.
TEST(CommunicationCases, CKP_20_AStepThatARankDoesNotComeTo) {
  RunStages({2, 3}, [](EngineOptions options, int rank, Communicator ranks) {
    options.communication_timeout_s = 0.5;
    Trainer trainer(options, ranks, Tensors({300}), Constant(1));
    if (rank == 1) return;
    const auto begin = Clock::now();
    ExpectLost(trainer.TryStep(Gradients({{1}})).status(), "rank 1");
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(10));
  });
}

}  // namespace
}  // namespace zerohold::testing
