// What io_uring does where it is allowed in part or not at all. Refusals are those of a container:
// a filter of system calls, in a child.
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "offload/io/backends.h"
#include "offload/io/mover.h"
#include "offload/io/record_file.h"
#include "tests/offload/io/answer.h"
#include "tests/offload/io/block_memory.h"
#include "tests/offload/io/refuse_calls.h"
#include "tests/src/memory/child.h"

namespace zerohold::io {
namespace {

using memory::InChild;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kBlocks = 64;

bool RingWorks() {
  return CreateUringBackend([](auto&) {}).ok();
}

// Takes the best backend, moves something there and back, and says which it was, what was noticed,
// and whether the bytes are right.
std::string MoveWithTheBest(std::span<std::byte> memory) {
  std::string told;
  const base::NoticeSink notice = [&told](const std::string& line) { told += line + "\n"; };
  RecordFile file =
      RecordFile::Create(ZH_TEST_FOLDER, static_cast<int64_t>(memory.size()), notice).value();
  const std::span<std::byte> spans[] = {memory};
  auto mover =
      Mover::Create(CreateBestBackend(notice), {{file.descriptor(), file.folder()}}, spans, {})
          .value();
  Mover::Request request{.direction = Direction::kWrite,
                         .memory = memory.data(),
                         .bytes = static_cast<int64_t>(memory.size())};
  for (size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 7 >> 3);
  if (!MoveNow(*mover, request).ok()) return told + "the write failed";
  std::memset(memory.data(), 0, memory.size());
  request.direction = Direction::kRead;
  if (!MoveNow(*mover, request).ok()) return told + "the read failed";
  bool right = true;
  for (size_t i = 0; i < memory.size(); ++i) {
    right &= memory[i] == static_cast<std::byte>(i * 7 >> 3);
  }
  return told + mover->backend_name() + (right ? ": right" : ": wrong");
}

std::string MoveWithout(long call, int error) {
  return InChild([=]() -> std::string {
    const std::string skip = RefuseCall(call, error);
    BlockMemory memory(kBlocks);
    return skip.empty() ? MoveWithTheBest(memory.all()) : skip;
  });
}

TEST(Uring, IsTakenInSilence) {
  if (!RingWorks()) GTEST_SKIP() << CreateUringBackend([](auto&) {}).status();
  BlockMemory memory(kBlocks);
  EXPECT_EQ(MoveWithTheBest(memory.all()), "io_uring: right");
}

// The core of OFF-12: io_uring is blocked, threads take over and it is said once; bytes are equal.
TEST(OffloadCases, OFF_12_Io) {
  for (const int error : {EPERM, ENOSYS, ENOMEM}) {
    const std::string result = MoveWithout(__NR_io_uring_setup, error);
    if (result.starts_with("skip")) GTEST_SKIP() << result;
    EXPECT_THAT(result, AllOf(HasSubstr(std::string("io_uring: io_uring_setup: ") +
                                        std::strerror(error) + " ("),
                              HasSubstr("of locked memory"),
                              HasSubstr("; disk transfers go through 8 threads\nthreads: right")));
  }
}

TEST(Uring, ARingThatCannotBeEnteredIsRefused) {
  if (!RingWorks()) GTEST_SKIP() << CreateUringBackend([](auto&) {}).status();
  const std::string result = MoveWithout(__NR_io_uring_enter, EPERM);
  if (result.starts_with("skip")) GTEST_SKIP() << result;
  EXPECT_THAT(result, AllOf(HasSubstr("io_uring: io_uring_enter: Operation not permitted ("),
                            HasSubstr("\nthreads: right")));
}

TEST(Uring, GoesOnWithoutRegistration) {
  if (!RingWorks()) GTEST_SKIP() << CreateUringBackend([](auto&) {}).status();
  const std::string result = MoveWithout(__NR_io_uring_register, EPERM);
  if (result.starts_with("skip")) GTEST_SKIP() << result;
  EXPECT_THAT(result,
              AllOf(HasSubstr("cannot register files (Operation not permitted)"),
                    HasSubstr("cannot register 256 KiB of staging memory (Operation not permitted"),
                    HasSubstr("\nio_uring: right")));
}

TEST(Uring, ALowLimitOfLockedMemoryIsNamed) {
  if (!RingWorks()) GTEST_SKIP() << CreateUringBackend([](auto&) {}).status();
  const std::string result = InChild([]() -> std::string {
    const rlimit low = {64 << 10, 64 << 10};
    // The capability to lock without limit goes with the user id.
    if (setrlimit(RLIMIT_MEMLOCK, &low) != 0) return "skip: cannot lower the limit";
    if (geteuid() == 0 && syscall(__NR_setresuid, -1, 65534, -1) != 0) return "skip: stays root";
    BlockMemory memory(4 * kBlocks);
    const std::span<std::byte> spans[] = {memory.all()};
    std::string told;
    auto backend = CreateUringBackend([&told](const std::string& line) { told += line; });
    if (!backend.ok()) return "skip: " + backend.status().ToString();
    const absl::Status opened = (*backend)->Open({}, spans, 4);
    return opened.ok() ? told : opened.ToString();
  });
  if (result.starts_with("skip")) GTEST_SKIP() << result;
  EXPECT_EQ(result,
            "io_uring cannot register 1 MiB of staging memory (Cannot allocate memory; limit of "
            "locked memory 64 KiB, `ulimit -l`): transfers go on with memory that is not "
            "registered");
}

// Staging lies in the node's segment, whose pages are shared.
TEST(Uring, RegistersSharedMemory) {
  if (!RingWorks()) GTEST_SKIP() << CreateUringBackend([](auto&) {}).status();
  void* memory =
      mmap(nullptr, kBlocks * kBlock, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  EXPECT_EQ(MoveWithTheBest({static_cast<std::byte*>(memory), kBlocks * kBlock}),
            "io_uring: right");
  munmap(memory, kBlocks * kBlock);
}

TEST(Uring, RefusesADepthThatTheRingCannotHold) {
  absl::StatusOr<std::unique_ptr<IoBackend>> ring = CreateUringBackend([](auto&) {});
  if (!ring.ok()) GTEST_SKIP() << ring.status();
  const absl::Status status = (*ring)->Open({}, {}, 256);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_TRUE((*ring)->Open({}, {}, 255).ok());
}

// A pipe that nobody writes to keeps a read for ever.
TEST(Uring, EndsWhatWaitsInTheKernel) {
  if (!RingWorks()) GTEST_SKIP() << "io_uring is refused here";
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  BlockMemory memory(1);
  auto kept = std::make_shared<TransferMemory>();
  auto ring = CreateUringBackend([](auto&) {}).value();
  auto mover =
      Mover::Create(std::move(ring), {{ends[0], "/pipe"}}, {}, {.timeout_s = 0.05, .memory = kept})
          .value();
  const absl::Status status = MoveNow(*mover, {.memory = memory.block(0), .bytes = kBlock});
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_FALSE(kept->given_up());
  mover.reset();
  for (const int end : ends) close(end);
}

}  // namespace
}  // namespace zerohold::io
