#include "tests/offload/io/conformance_io.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <random>
#include <thread>

#include "src/telemetry/trace.h"
#include "tests/offload/io/block_memory.h"

namespace zerohold::io {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kLongNs = 20'000 * kMs;

int64_t CpuNs() {
  timespec time = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

void IoConformance::SetUp() {
  absl::StatusOr<std::unique_ptr<IoBackend>> made = GetParam().make();
  if (absl::IsUnavailable(made.status())) GTEST_SKIP() << made.status();
  ASSERT_TRUE(made.ok()) << made.status();
  backend_ = *std::move(made);
  for (int i = 0; i < kFiles && GetParam().has_files; ++i) {
    absl::StatusOr<RecordFile> file = RecordFile::Create(ZH_TEST_FOLDER, 0, [](auto&) {});
    ASSERT_TRUE(file.ok()) << file.status();
    files_.push_back(*std::move(file));
    descriptors_.push_back(files_.back().descriptor());
  }
  descriptors_.resize(kFiles, -1);
}

void IoConformance::Open(std::span<const std::span<std::byte>> memory, int depth) {
  const absl::Status status = backend_->Open(descriptors_, memory, depth);
  ASSERT_TRUE(status.ok()) << status;
}

std::vector<int64_t> IoConformance::Results(const std::vector<Transfer>& transfers) {
  std::vector<int64_t> results(transfers.size(), INT64_MIN);
  std::vector<Completion> completions(transfers.size());
  for (size_t seen = 0; seen < transfers.size();) {
    const int64_t count = backend_->Reap(completions, kLongNs);
    if (count == 0) ADD_FAILURE() << "a completion is missing";
    if (count == 0) break;
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_EQ(results.at(completions[i].tag), INT64_MIN) << "twice: " << completions[i].tag;
      results[completions[i].tag] = completions[i].result;
    }
    seen += static_cast<size_t>(count);
  }
  return results;
}

void IoConformance::MoveAll(std::vector<Transfer> transfers) {
  std::reverse(transfers.begin(), transfers.end());
  while (!transfers.empty()) {
    std::vector<Transfer> batch;
    for (; batch.size() < kDepth && !transfers.empty(); transfers.pop_back()) {
      batch.push_back(transfers.back());
      batch.back().tag = batch.size() - 1;
    }
    backend_->Submit(batch);
    const std::vector<int64_t> results = Results(batch);
    for (size_t i = 0; i < batch.size(); ++i) {
      ASSERT_GT(results[i], 0) << batch[i].offset_bytes;
      ASSERT_LE(results[i], batch[i].bytes);
      if (results[i] == batch[i].bytes) continue;
      batch[i].offset_bytes += results[i];
      batch[i].memory += results[i];
      batch[i].bytes -= results[i];
      transfers.push_back(batch[i]);
    }
  }
}

TEST_P(IoConformance, WhatIsWrittenIsRead) {
  constexpr int64_t kBlocks = 400;
  BlockMemory memory(2 * kBlocks);  // written from the first half, read into the second
  const std::span<std::byte> told[] = {memory.all()};
  Open(told);
  std::mt19937 random(5);
  std::vector<Transfer> writes;
  for (int64_t at = 0; at < kBlocks; at += writes.back().bytes / kBlock) {
    const int64_t blocks = std::min<int64_t>(1 + random() % 9, kBlocks - at);
    for (int64_t i = at; i < at + blocks; ++i) memory.Fill(i, random());
    // Both files hold something at the same offsets, so that a mix-up shows.
    const auto number = static_cast<int64_t>(writes.size());
    writes.push_back({.direction = Direction::kWrite,
                      .file = static_cast<int>(number % kFiles),
                      .offset_bytes = number / kFiles * 9 * kBlock,
                      .memory = memory.block(at),
                      .bytes = blocks * kBlock});
  }
  std::vector<Transfer> reads = writes;
  for (Transfer& read : reads) {
    read.direction = Direction::kRead;
    read.memory += kBlocks * kBlock;
  }
  std::shuffle(writes.begin(), writes.end(), random);
  std::shuffle(reads.begin(), reads.end(), random);
  MoveAll(writes);
  MoveAll(reads);
  EXPECT_EQ(std::memcmp(memory.block(0), memory.block(kBlocks), kBlocks * kBlock), 0);
}

TEST_P(IoConformance, AReadStopsWhereTheFileEnds) {
  BlockMemory memory(8);
  Open({});
  MoveAll({{.direction = Direction::kWrite, .memory = memory.block(0), .bytes = 3 * kBlock}});
  const std::vector<Transfer> reads = {
      {.memory = memory.block(0), .bytes = 8 * kBlock, .tag = 0},
      {.offset_bytes = 3 * kBlock, .memory = memory.block(0), .bytes = kBlock, .tag = 1},
      {.offset_bytes = 9 * kBlock, .memory = memory.block(0), .bytes = kBlock, .tag = 2}};
  for (const Transfer& read : reads) {
    Transfer alone = read;
    alone.tag = 0;
    backend_->Submit({&alone, 1});
    EXPECT_EQ(Results({alone}), std::vector<int64_t>{read.tag == 0 ? 3 * kBlock : 0}) << read.tag;
  }
}

TEST_P(IoConformance, EveryTagComesBackOnce) {
  BlockMemory memory(kDepth);
  const std::span<std::byte> told[] = {memory.all()};
  Open(told);
  for (int round = 0; round < 20; ++round) {
    std::vector<Transfer> writes;
    for (int i = 0; i < kDepth; ++i) {
      writes.push_back({.direction = Direction::kWrite,
                        .offset_bytes = i * kBlock,
                        .memory = memory.block(i),
                        .bytes = kBlock,
                        .tag = static_cast<uint64_t>(i)});
    }
    backend_->Submit(writes);
    EXPECT_EQ(Results(writes), std::vector<int64_t>(kDepth, kBlock));
  }
}

TEST_P(IoConformance, MemoryThatWasNotToldWorksToo) {
  BlockMemory told(2);
  BlockMemory other(2);
  const std::span<std::byte> spans[] = {told.all()};
  Open(spans);
  other.Fill(0, 77);
  MoveAll({{.direction = Direction::kWrite, .memory = other.block(0), .bytes = kBlock}});
  MoveAll({{.memory = told.block(1), .bytes = kBlock}});
  EXPECT_TRUE(told.Holds(1, 77));
}

// A registered transfer may not cross it; the caller need not know.
TEST_P(IoConformance, ABorderOfMemoryIsNoBorderOfTransfers) {
  BlockMemory memory(6);
  const std::span<std::byte> told[] = {memory.all().subspan(3 * kBlock),
                                       memory.all().first(3 * kBlock)};
  Open(told);
  for (int i = 0; i < 6; ++i) memory.Fill(i, 1000 * i);
  MoveAll({{.direction = Direction::kWrite, .memory = memory.block(0), .bytes = 6 * kBlock}});
  std::memset(memory.block(0), 0, 6 * kBlock);
  MoveAll({{.memory = memory.block(0), .bytes = 6 * kBlock}});
  for (int i = 0; i < 6; ++i) EXPECT_TRUE(memory.Holds(i, 1000 * i)) << i;
}

TEST_P(IoConformance, AWaitForNothingEndsInTimeAndBurnsNothing) {
  Open({});
  Completion completion;
  const int64_t begin_ns = telemetry::NowNs();
  const int64_t cpu_ns = CpuNs();
  EXPECT_EQ(backend_->Reap({&completion, 1}, 60 * kMs), 0);
  EXPECT_GE(telemetry::NowNs() - begin_ns, 60 * kMs);
  EXPECT_LT(telemetry::NowNs() - begin_ns, kLongNs);
  EXPECT_LT(CpuNs() - cpu_ns, 20 * kMs);
  EXPECT_EQ(backend_->Reap({&completion, 1}, 0), 0);
}

TEST_P(IoConformance, AWakeThatCameBeforeCountsOnce) {
  Open({});
  Completion completion;
  for (int round = 0; round < 3; ++round) {
    backend_->Wake();
    backend_->Wake();
    const int64_t begin_ns = telemetry::NowNs();
    EXPECT_EQ(backend_->Reap({&completion, 1}, kLongNs), 0);
    EXPECT_LT(telemetry::NowNs() - begin_ns, kLongNs / 2);
    const int64_t again_ns = telemetry::NowNs();
    EXPECT_EQ(backend_->Reap({&completion, 1}, 20 * kMs), 0);
    EXPECT_GE(telemetry::NowNs() - again_ns, 20 * kMs);
  }
}

TEST_P(IoConformance, AnotherThreadEndsTheWait) {
  Open({});
  Completion completion;
  std::jthread other([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    backend_->Wake();
  });
  const int64_t begin_ns = telemetry::NowNs();
  EXPECT_EQ(backend_->Reap({&completion, 1}, kLongNs), 0);
  EXPECT_LT(telemetry::NowNs() - begin_ns, kLongNs / 2);
}

TEST_P(IoConformance, WakesDoNotDisturbTransfers) {
  BlockMemory memory(2 * kDepth);
  const std::span<std::byte> told[] = {memory.all()};
  Open(told);
  std::atomic<bool> over{false};
  std::jthread other([&] {
    while (!over) {
      backend_->Wake();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  std::vector<Completion> completions(kDepth);
  for (int round = 0; round < 30; ++round) {
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
      std::vector<Transfer> transfers;
      for (int i = 0; i < kDepth; ++i) {
        const bool writes = direction == Direction::kWrite;
        if (writes) memory.Fill(i, 1000 * round + i);
        transfers.push_back({.direction = direction,
                             .offset_bytes = i * kBlock,
                             .memory = memory.block(writes ? i : kDepth + i),
                             .bytes = kBlock,
                             .tag = static_cast<uint64_t>(i)});
      }
      backend_->Submit(transfers);
      for (int64_t left = kDepth; left > 0;) {
        const int64_t count = backend_->Reap(completions, kLongNs);
        for (int64_t i = 0; i < count; ++i) EXPECT_EQ(completions[i].result, kBlock);
        left -= count;
      }
    }
    for (int i = 0; i < kDepth; ++i) EXPECT_TRUE(memory.Holds(kDepth + i, 1000 * round + i));
  }
  over = true;
}

TEST_P(IoConformance, OffsetsBeyondFourGigabytes) {
  if (!GetParam().has_files) GTEST_SKIP() << "would take that much memory";
  BlockMemory memory(2);
  Open({});
  memory.Fill(0, 9);
  constexpr int64_t kFar = (int64_t{5} << 30) + kBlock;
  MoveAll({{.direction = Direction::kWrite,
            .offset_bytes = kFar,
            .memory = memory.block(0),
            .bytes = kBlock}});
  MoveAll({{.offset_bytes = kFar, .memory = memory.block(1), .bytes = kBlock}});
  EXPECT_TRUE(memory.Holds(1, 9));
}

TEST_P(IoConformance, RefusalsAreErrnos) {
  if (!GetParam().has_files) GTEST_SKIP() << "has no kernel that could refuse";
  descriptors_[0] = open("/dev/full", O_RDWR | O_CLOEXEC);
  descriptors_[1] = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(std::min(descriptors_[0], descriptors_[1]), 0);
  BlockMemory memory(1);
  Open({});
  const std::vector<Transfer> writes = {{Direction::kWrite, 0, 0, memory.block(0), kBlock, 0},
                                        {Direction::kWrite, 1, 0, memory.block(0), kBlock, 1}};
  backend_->Submit(writes);
  EXPECT_EQ(Results(writes), (std::vector<int64_t>{-ENOSPC, -EBADF}));
  backend_.reset();
  for (const int descriptor : descriptors_) close(descriptor);
}

TEST_P(IoConformance, WhatIsCancelledCompletesAllTheSame) {
  BlockMemory memory(8 * kDepth);
  Open({});
  for (int round = 0; round < 10; ++round) {
    std::vector<Transfer> writes;
    for (int i = 0; i < kDepth; ++i) {
      writes.push_back({.direction = Direction::kWrite,
                        .offset_bytes = 8 * i * kBlock,
                        .memory = memory.block(8 * i),
                        .bytes = 8 * kBlock,
                        .tag = static_cast<uint64_t>(i)});
    }
    backend_->Submit(writes);
    for (uint64_t tag = 0; tag <= kDepth; ++tag) backend_->Cancel(tag);  // one is not there
    backend_->Cancel(0);
    for (const int64_t result : Results(writes)) {
      EXPECT_TRUE(result == 8 * kBlock || result == -ECANCELED) << result;
    }
  }
  MoveAll({{.direction = Direction::kWrite, .memory = memory.block(0), .bytes = kBlock}});
}

// The memory is the test's again when the destructor returns.
TEST_P(IoConformance, GoesWithTransfersInFlight) {
  BlockMemory memory(64 * kDepth);
  const std::span<std::byte> told[] = {memory.all()};
  Open(told);
  std::vector<Transfer> transfers;
  for (int i = 0; i < kDepth; ++i) {
    transfers.push_back({i % 2 == 0 ? Direction::kWrite : Direction::kRead, i % kFiles,
                         i * 64 * kBlock, memory.block(64 * i), 64 * kBlock,
                         static_cast<uint64_t>(i)});
  }
  backend_->Submit(transfers);
  backend_.reset();
}

}  // namespace zerohold::io
