// What a Move is answered with when it cannot be done: a code to act on and a line to read.
#include <gmock/gmock.h>

#include <cerrno>
#include <thread>

#include "offload/io/backends.h"
#include "offload/io/mover.h"
#include "src/telemetry/trace.h"
#include "tests/offload/io/answer.h"
#include "tests/offload/io/block_memory.h"
#include "tests/offload/io/scripted_backend.h"
#include "tests/src/memory/child.h"

namespace zerohold::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::unique_ptr<Mover> Over(Script* script, const Mover::Settings& settings) {
  return Mover::Create(std::make_unique<ScriptedBackend>(script), {{-1, "/a"}, {-1, "/b"}}, {},
                       settings)
      .value();
}

TEST(MoverErrors, TellWhatTheKernelSaid) {
  struct {
    int error;
    absl::StatusCode code;
    const char* mend;
  } const rows[] = {
      {ENOSPC, absl::StatusCode::kResourceExhausted, "name another folder in nvme_paths"},
      {EDQUOT, absl::StatusCode::kResourceExhausted, "name another folder in nvme_paths"},
      {EFBIG, absl::StatusCode::kResourceExhausted, "name another folder in nvme_paths"},
      {EIO, absl::StatusCode::kDataLoss, "dmesg"},
      {EBADMSG, absl::StatusCode::kDataLoss, "dmesg"},
      {EBADF, absl::StatusCode::kUnavailable, ""},
      {ENODEV, absl::StatusCode::kUnavailable, ""},
  };
  for (const auto& row : rows) {
    Script script;
    BlockMemory memory(3);
    auto mover = Over(&script, {});
    Answer answer;
    mover->Move(answer.To({.direction = Direction::kWrite,
                           .file = 1,
                           .offset_bytes = 5 * kBlock,
                           .memory = memory.block(0),
                           .bytes = 3 * kBlock}));
    script.Complete(script.Submitted(1)[0], kBlock);
    script.Complete(script.Submitted(2)[1], -row.error);
    const absl::Status status = answer.Get();
    EXPECT_EQ(status.code(), row.code) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("nvme_paths: /b: write of 12288 bytes at 20480"),
                      HasSubstr("4096 of them moved"), HasSubstr("scripted"),
                      HasSubstr(std::strerror(row.error)), HasSubstr(row.mend)));
  }
}

TEST(MoverErrors, TheEndOfTheFileInsideATransferIsDataLoss) {
  BlockMemory memory(4);
  auto mover = Mover::Create(CreateMemoryBackend(), {{-1, "/disk"}}, {}, {}).value();
  ASSERT_TRUE(
      MoveNow(*mover,
              {.direction = Direction::kWrite, .memory = memory.block(0), .bytes = 3 * kBlock})
          .ok());
  const absl::Status status =
      MoveNow(*mover, {.offset_bytes = kBlock, .memory = memory.block(0), .bytes = 4 * kBlock});
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("/disk: read of 16384 bytes at 4096"),
                    HasSubstr("8192 of them moved"), HasSubstr("the file ends at 12288")));
}

TEST(MoverErrors, ADiskThatNeverGetsOnIsToldInBoundedTime) {
  BlockMemory memory(1);
  auto mover = Mover::Create(CreateFaultyBackend(CreateMemoryBackend(), {.again = 1.0}),
                             {{-1, "/disk"}}, {}, {})
                   .value();
  const int64_t begin_ns = telemetry::NowNs();
  const absl::Status status =
      MoveNow(*mover, {.direction = Direction::kWrite, .memory = memory.block(0), .bytes = kBlock});
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("/disk: write of 4096 bytes at 0"), HasSubstr("64 times in a row")));
  EXPECT_LT(telemetry::NowNs() - begin_ns, 15'000'000'000);
  EXPECT_GT(telemetry::NowNs() - begin_ns, 500'000'000);  // it gave the disk time
}

TEST(MoverErrors, DeadlinesHoldInFlightAndInTheQueue) {
  Script script;
  BlockMemory memory(2);
  auto mover = Over(&script, {.depth = 1, .timeout_s = 0.5});
  Answer first;
  Answer second;
  mover->Move(first.To({.offset_bytes = kBlock, .memory = memory.block(0), .bytes = 2 * kBlock}));
  mover->Move(second.To({.file = 1, .memory = memory.block(1), .bytes = kBlock}));
  script.Complete(script.Submitted(1)[0], kBlock);
  const absl::Status status = first.Get();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("nvme_paths: /a: read of 8192 bytes at 4096"),
                    HasSubstr("4096 of them moved"), HasSubstr("within 0.5 s")));
  EXPECT_EQ(second.Get().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(script.Submitted(2).size(), 2u);  // the second was never begun
  // The late completion makes room, and is nobody's.
  script.Complete(script.Submitted(2)[1], kBlock);
  Answer third;
  mover->Move(third.To({.memory = memory.block(0), .bytes = kBlock}));
  script.Complete(script.Submitted(3)[2], kBlock);
  EXPECT_TRUE(third.Get().ok());
}

TEST(MoverErrors, DeadlinesHoldBetweenTries) {
  BlockMemory memory(1);
  auto mover = Mover::Create(CreateFaultyBackend(CreateMemoryBackend(), {.again = 1.0}),
                             {{-1, "/disk"}}, {}, {.timeout_s = 0.05})
                   .value();
  EXPECT_EQ(MoveNow(*mover, {.memory = memory.block(0), .bytes = kBlock}).code(),
            absl::StatusCode::kUnavailable);
}

// Memory is given up only when the disk may still touch it.
TEST(MoverErrors, ATransferThatCanBeCancelledGivesNothingUp) {
  const std::pair<int64_t, absl::StatusCode> rows[] = {
      {-ECANCELED, absl::StatusCode::kUnavailable},
      {kBlock, absl::StatusCode::kUnavailable},
      {2 * kBlock, absl::StatusCode::kOk}};  // it was through meanwhile
  for (const auto& [result, code] : rows) {
    Script script;
    script.OnCancel(result);
    BlockMemory memory(2);
    const auto kept = std::make_shared<TransferMemory>();
    auto mover = Over(&script, {.timeout_s = 0.05, .memory = kept});
    Answer answer;
    mover->Move(answer.To({.memory = memory.block(0), .bytes = 2 * kBlock}));
    const absl::Status status = answer.Get();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_EQ(std::string(status.message()).find("nor could it"), std::string::npos) << status;
    EXPECT_FALSE(kept->given_up());
    mover.reset();
    EXPECT_EQ(kept.use_count(), 1);
  }
}

TEST(MoverErrors, WhatCannotBeCancelledIsGivenUpBeforeItIsTold) {
  Script script;
  BlockMemory memory(1);
  const auto kept = std::make_shared<TransferMemory>();
  auto mover = Over(&script, {.timeout_s = 0.05, .memory = kept});
  Answer answer;
  mover->Move(answer.To({.memory = memory.block(0), .bytes = kBlock}));
  const absl::Status status = answer.Get();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("nor could it be cancelled: the disk may still carry it out"));
  EXPECT_TRUE(kept->given_up());
  // It comes after all, and has been seen when the one behind it is answered: nothing is left
  // behind.
  script.Complete(script.Submitted(1)[0], kBlock);
  Answer behind;
  mover->Move(behind.To({.memory = memory.block(0), .bytes = kBlock}));
  script.Complete(script.Submitted(2)[1], kBlock);
  EXPECT_TRUE(behind.Get().ok());
  mover.reset();
  EXPECT_EQ(kept.use_count(), 1);
}

TEST(TransferMemory, IsKeptFromTheGivingUpOn) {
  const auto one = std::make_shared<int>();
  const auto other = std::make_shared<int>();
  {
    TransferMemory memory(one);
    memory.Keep(one);
    memory.Keep(other);
    memory.Drop(one);
    EXPECT_EQ(one.use_count(), 2);
    memory.Drop(one);
    EXPECT_EQ(one.use_count(), 1);
    memory.GiveUp(absl::UnavailableError("late"));
    memory.Drop(other);
    EXPECT_EQ(other.use_count(), 2);
  }
  EXPECT_EQ(other.use_count(), 1) << "who gives up keeps the whole of it";
}

// In a child, whose end takes what is left as it is.
TEST(MoverErrors, ADiskThatNeverAnswersDoesNotHoldTheEnd) {
  EXPECT_EQ(memory::InChild([]() -> std::string {
              auto* script = new Script;
              BlockMemory memory(1);
              const auto owner = std::make_shared<int>();
              const auto files = std::make_shared<int>();
              Answer answer;
              {
                auto kept = std::make_shared<TransferMemory>(owner);
                auto mover = Over(script, {.timeout_s = 0.05, .memory = kept, .files = files});
                mover->Move(answer.To({.memory = memory.block(0), .bytes = kBlock}));
              }
              if (!absl::IsUnavailable(answer.Get())) return "not answered";
              if (owner.use_count() == 1) return "the memory would go";
              return files.use_count() == 1 ? "the files would be closed" : "";
            }),
            "");
}

}  // namespace
}  // namespace zerohold::io
