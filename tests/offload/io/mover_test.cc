// The order of transfers, what is in flight, counters, and what a warm mover allocates.
#include "offload/io/mover.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "offload/io/backends.h"
#include "src/telemetry/trace.h"
#include "tests/offload/io/answer.h"
#include "tests/offload/io/block_memory.h"
#include "tests/offload/io/fault_tally.h"
#include "tests/offload/io/scripted_backend.h"
#include "tests/src/device/count_new.h"

namespace zerohold::io {
namespace {

using testing::ElementsAre;

std::unique_ptr<Mover> Over(std::unique_ptr<IoBackend> backend, const Mover::Settings& settings) {
  return Mover::Create(std::move(backend), {{-1, "/disk"}}, {}, settings).value();
}

std::vector<int64_t> Offsets(const std::vector<Transfer>& transfers) {
  std::vector<int64_t> blocks;
  for (const Transfer& transfer : transfers) blocks.push_back(transfer.offset_bytes / kBlock);
  return blocks;
}

TEST(Mover, StartsInOrderAndNeverMoreThanTheDepth) {
  Script script;
  BlockMemory memory(1);
  auto mover = Over(std::make_unique<ScriptedBackend>(&script), {.depth = 2});
  Answer answers[4];
  for (int i = 0; i < 4; ++i) {
    mover->Move(
        answers[i].To({.offset_bytes = i * kBlock, .memory = memory.block(0), .bytes = kBlock}));
  }
  EXPECT_THAT(Offsets(script.Submitted(2)), ElementsAre(0, 1));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(script.Submitted(2).size(), 2u);  // the others wait
  script.Complete(script.Submitted(2)[1], kBlock);
  EXPECT_TRUE(answers[1].Get().ok());
  EXPECT_FALSE(answers[0].arrived());
  EXPECT_THAT(Offsets(script.Submitted(3)), ElementsAre(0, 1, 2));
  script.Complete(script.Submitted(3)[0], kBlock);
  script.Complete(script.Submitted(3)[2], kBlock);
  EXPECT_THAT(Offsets(script.Submitted(4)), ElementsAre(0, 1, 2, 3));
  script.Complete(script.Submitted(4)[3], kBlock);
  for (int i : {0, 2, 3}) EXPECT_TRUE(answers[i].Get().ok()) << i;
}

TEST(Mover, GoesOnAtWholeBlocks) {
  Script script;
  BlockMemory memory(4);
  auto mover = Over(std::make_unique<ScriptedBackend>(&script), {});
  Answer answer;
  mover->Move(answer.To({.direction = Direction::kWrite,
                         .offset_bytes = 8 * kBlock,
                         .memory = memory.block(0),
                         .bytes = 4 * kBlock}));
  script.Complete(script.Submitted(1)[0], 2 * kBlock + 1000);
  script.Complete(script.Submitted(2)[1], 0);
  script.Complete(script.Submitted(3)[2], 512);
  script.Complete(script.Submitted(4)[3], -EINTR);
  script.Complete(script.Submitted(5)[4], 2 * kBlock);
  EXPECT_TRUE(answer.Get().ok());
  const std::vector<Transfer> all = script.Submitted(5);
  for (size_t i = 1; i < all.size(); ++i) {
    EXPECT_EQ(all[i].offset_bytes, 10 * kBlock) << i;
    EXPECT_EQ(all[i].memory, memory.block(2)) << i;
    EXPECT_EQ(all[i].bytes, 2 * kBlock) << i;
  }
  EXPECT_EQ(mover->counters().written_bytes, 4 * kBlock);
  EXPECT_EQ(mover->counters().resubmitted, 4);
}

TEST(Mover, CountsBytesAndBusyTimeByDirection) {
  Script script;
  BlockMemory memory(2);
  auto mover = Over(std::make_unique<ScriptedBackend>(&script), {});
  Answer read;
  Answer write;
  const int64_t begin_ns = telemetry::NowNs();
  mover->Move(read.To({.memory = memory.block(0), .bytes = kBlock}));
  script.Submitted(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  script.Complete(script.Submitted(1)[0], kBlock);
  ASSERT_TRUE(read.Get().ok());
  const int64_t read_ns = telemetry::NowNs() - begin_ns;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  mover->Move(
      write.To({.direction = Direction::kWrite, .memory = memory.block(0), .bytes = 2 * kBlock}));
  script.Complete(script.Submitted(2)[1], 2 * kBlock);
  ASSERT_TRUE(write.Get().ok());
  const MoverCounters counters = mover->counters();
  EXPECT_EQ(counters.read_bytes, kBlock);
  EXPECT_EQ(counters.written_bytes, 2 * kBlock);
  EXPECT_EQ(counters.resubmitted, 0);
  EXPECT_GE(counters.busy_read_ns, 30'000'000);
  EXPECT_LE(counters.busy_read_ns, read_ns);  // the pause is nobody's
  EXPECT_GT(counters.busy_write_ns, 0);
}

TEST(Mover, AnswersAllBeforeItGoes) {
  const int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  BlockMemory memory(1);
  std::atomic<int> answered{0};
  {
    auto mover =
        Mover::Create(CreateThreadBackend(2), {{zeros, "/dev/zero"}}, {}, {.depth = 3}).value();
    for (int i = 0; i < 100; ++i) {
      mover->Move(
          {.memory = memory.block(0),
           .bytes = kBlock,
           .done = [](void* context, absl::Status) { ++*static_cast<std::atomic<int>*>(context); },
           .context = &answered});
    }
  }
  EXPECT_EQ(answered, 100);
  close(zeros);
}

TEST(Mover, TakesMovesFromAnyThread) {
  constexpr int kThreads = 4;
  constexpr int kEach = 200;
  BlockMemory memory(kThreads * kEach);
  auto mover = Over(CreateMemoryBackend(), {.depth = 8});
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = t * kEach; i < (t + 1) * kEach; ++i) {
          memory.Fill(i, 10 * i);
          EXPECT_TRUE(MoveNow(*mover, {.direction = Direction::kWrite,
                                       .offset_bytes = i * kBlock,
                                       .memory = memory.block(i),
                                       .bytes = kBlock})
                          .ok());
          memory.Fill(i, 0);
          EXPECT_TRUE(
              MoveNow(*mover,
                      {.offset_bytes = i * kBlock, .memory = memory.block(i), .bytes = kBlock})
                  .ok());
        }
      });
    }
  }
  for (int i = 0; i < kThreads * kEach; ++i) ASSERT_TRUE(memory.Holds(i, 10 * i)) << i;
}

// What no thread has begun is ended by a cancel.
TEST(Threads, EndWhatTheyHaveNotBegun) {
  constexpr int kTransfers = 64;
  const int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  BlockMemory memory(64);
  auto backend = CreateThreadBackend(1);
  const int descriptors[] = {zeros};
  ASSERT_TRUE(backend->Open(descriptors, {}, kTransfers).ok());
  int cancelled = 0;
  for (int round = 0; round < 1000 && cancelled == 0; ++round) {
    std::vector<Transfer> reads(kTransfers);
    for (int i = 0; i < kTransfers; ++i) {
      reads[i] = {.memory = memory.block(0), .bytes = 64 * kBlock, .tag = static_cast<uint64_t>(i)};
    }
    backend->Submit(reads);
    for (uint64_t tag = kTransfers; tag > 0; --tag) backend->Cancel(tag - 1);
    for (int64_t left = kTransfers; left > 0;) {
      Completion completions[kTransfers];
      const int64_t count = backend->Reap(completions, 1'000'000'000);
      for (int64_t i = 0; i < count; ++i) cancelled += completions[i].result == -ECANCELED;
      left -= count;
    }
  }
  EXPECT_GT(cancelled, 0);
  close(zeros);
}

// A chain of moves, each begun by the answer to the one before.
struct Chain {
  Mover* mover = nullptr;
  Mover::Request request;
  std::atomic<int> left{0};

  static void Next(void* context, absl::Status status) {
    auto* chain = static_cast<Chain*>(context);
    if (!status.ok() || --chain->left == 0) {
      chain->left.notify_all();
      return;
    }
    chain->mover->Move(chain->request);
  }
  void Run(int moves) {
    left = moves;
    mover->Move(request);
    for (int now = left; now > 0; now = left) left.wait(now);
  }
};

TEST(Mover, AllocatesNothingWhenWarm) {
  BlockMemory memory(8);
  // Short transfers and late ones too: all paths but those of errors.
  auto backend = CreateFaultyBackend(CreateMemoryBackend(),
                                     {.seed = 1, .short_transfer = 0.3, .again = 0.2, .late = 0.2});
  auto mover = Over(std::move(backend), {});
  Chain chain{.mover = mover.get(),
              .request = {.direction = Direction::kWrite,
                          .memory = memory.block(0),
                          .bytes = 8 * kBlock,
                          .done = &Chain::Next}};
  chain.request.context = &chain;
  chain.Run(200);
  const int64_t before = NewCalls();
  chain.Run(500);
  EXPECT_EQ(NewCalls(), before);
  EXPECT_GT(mover->counters().resubmitted, 100);
}

// OFF-10's schedule: every third completion halved, every fifth put off.
TEST(OffloadCases, OFF_10_Mover) {
  constexpr int kMoves = 60;
  BlockMemory memory(8 * kMoves);
  FaultTally tally;
  auto mover = Over(CreateFaultyBackend(CreateMemoryBackend(), {.halve_every = 3, .again_every = 5},
                                        CountIn(tally)),
                    {.depth = 7});
  for (int i = 0; i < 8 * kMoves; ++i) memory.Fill(i, 33 * i);
  for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
    std::vector<Answer> answers(kMoves);
    for (int i = 0; i < kMoves; ++i) {
      mover->Move(answers[i].To({.direction = direction,
                                 .offset_bytes = 8 * i * kBlock,
                                 .memory = memory.block(8 * i),
                                 .bytes = 8 * kBlock}));
    }
    for (Answer& answer : answers) EXPECT_TRUE(answer.Get().ok());
    if (direction == Direction::kWrite) std::memset(memory.all().data(), 0, memory.all().size());
  }
  for (int i = 0; i < 8 * kMoves; ++i) ASSERT_TRUE(memory.Holds(i, 33 * i)) << i;
  const auto hits = tally.Take();
  EXPECT_GT(hits[static_cast<int>(Fault::kShortTransfer)], 40);
  EXPECT_GT(hits[static_cast<int>(Fault::kAgain)], 30);
}

}  // namespace
}  // namespace zerohold::io
