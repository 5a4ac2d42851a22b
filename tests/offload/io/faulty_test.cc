// Each kind of fault is what it says, the schedule is its seed's, and silent ones are counted: only
// a checksum above finds those.
#include <gmock/gmock.h>

#include <bit>
#include <cerrno>

#include "offload/io/backends.h"
#include "tests/offload/io/block_memory.h"
#include "tests/offload/io/fault_tally.h"

namespace zerohold::io {
namespace {

constexpr int kDepth = 64;

// The faulty backend, open over one file in memory.
struct Faulty {
  explicit Faulty(const FaultSpec& spec)
      : backend(CreateFaultyBackend(CreateMemoryBackend(), spec, CountIn(tally))) {
    const int none[] = {-1};
    EXPECT_TRUE(backend->Open(none, {}, kDepth).ok());
  }

  // In the order of their arrival.
  std::vector<Completion> Move(const std::vector<Transfer>& transfers) {
    backend->Submit(transfers);
    std::vector<Completion> all;
    Completion arrived[kDepth];
    while (all.size() < transfers.size()) {
      const int64_t count = backend->Reap(arrived, 1'000'000'000);
      if (count == 0) break;
      all.insert(all.end(), arrived, arrived + count);
    }
    return all;
  }
  Completion MoveOne(Direction direction, std::byte* memory, int64_t blocks) {
    return Move({{.direction = direction, .memory = memory, .bytes = blocks * kBlock}}).at(0);
  }
  int64_t Hits(Fault fault) { return tally.Take()[static_cast<int>(fault)]; }

  FaultTally tally;
  std::unique_ptr<IoBackend> backend;
};

TEST(Faulty, FlipsOneBitOfARead) {
  Faulty faulty({.seed = 4, .bit_flip = 1.0});
  BlockMemory memory(4);
  memory.Fill(0, 5);
  memory.Fill(1, 6);
  EXPECT_EQ(faulty.MoveOne(Direction::kWrite, memory.block(0), 2).result, 2 * kBlock);
  EXPECT_EQ(faulty.MoveOne(Direction::kRead, memory.block(2), 2).result, 2 * kBlock);
  int wrong_bits = 0;
  for (int64_t i = 0; i < 2 * kBlock; ++i) {
    wrong_bits += std::popcount(std::to_integer<uint8_t>(memory.block(0)[i] ^ memory.block(2)[i]));
  }
  EXPECT_EQ(wrong_bits, 1);
  EXPECT_EQ(faulty.Hits(Fault::kBitFlip), 1);
}

// So that a header is hit as often as one likes.
TEST(Faulty, FlipsInTheBytesThatItIsGiven) {
  for (int seed = 0; seed < 20; ++seed) {
    Faulty faulty({.seed = seed, .bit_flip = 1.0, .flip_begin = 5, .flip_end = 8});
    BlockMemory memory(2);
    EXPECT_EQ(faulty.MoveOne(Direction::kWrite, memory.block(0), 1).result, kBlock);
    EXPECT_EQ(faulty.MoveOne(Direction::kRead, memory.block(1), 1).result, kBlock);
    int wrong_bytes = 0;
    for (int64_t i = 5; i < 8; ++i) wrong_bytes += memory.block(0)[i] != memory.block(1)[i];
    EXPECT_EQ(wrong_bytes, 1) << seed;
  }
}

TEST(Faulty, LeavesTheOthersAlone) {
  Faulty faulty({.eio = 1.0, .first = 2, .last = 3});
  BlockMemory memory(1);
  std::vector<int64_t> results;
  for (int i = 0; i < 6; ++i) {
    results.push_back(faulty.MoveOne(Direction::kWrite, memory.block(0), 1).result);
  }
  EXPECT_THAT(results, testing::ElementsAre(kBlock, kBlock, -EIO, -EIO, kBlock, kBlock));
}

TEST(Faulty, AStaleWriteReportsSuccessAndIsNotDone) {
  Faulty faulty({.stale = 1.0, .first = 1});
  BlockMemory memory(1);
  memory.Fill(0, 5);
  EXPECT_EQ(faulty.MoveOne(Direction::kWrite, memory.block(0), 1).result, kBlock);
  memory.Fill(0, 6);
  EXPECT_EQ(faulty.MoveOne(Direction::kWrite, memory.block(0), 1).result, kBlock);
  EXPECT_EQ(faulty.MoveOne(Direction::kRead, memory.block(0), 1).result, kBlock);
  EXPECT_TRUE(memory.Holds(0, 5));
  EXPECT_EQ(faulty.Hits(Fault::kStale), 1);
}

TEST(Faulty, ShortTransfersAreWholeBlocksAndNoEndOfAFile) {
  Faulty faulty({.short_transfer = 1.0});
  BlockMemory memory(8);
  bool none_written = false;
  for (int i = 0; i < 100; ++i) {
    const int64_t written = faulty.MoveOne(Direction::kWrite, memory.block(0), 8).result;
    EXPECT_LT(written, 8 * kBlock);
    EXPECT_EQ(written % kBlock, 0);
    none_written |= written == 0;
  }
  EXPECT_TRUE(none_written);
  EXPECT_EQ(faulty.Hits(Fault::kShortTransfer), 100);
  for (int i = 0; i < 100; ++i) {
    const int64_t read = faulty.MoveOne(Direction::kRead, memory.block(0), 4).result;
    EXPECT_GT(read, 0);
    EXPECT_LT(read, 4 * kBlock);
    EXPECT_EQ(read % kBlock, 0);
  }
}

TEST(Faulty, AnswersErrnos) {
  BlockMemory memory(1);
  EXPECT_EQ(Faulty({.eio = 1.0}).MoveOne(Direction::kRead, memory.block(0), 1).result, -EIO);
  EXPECT_EQ(Faulty({.enospc = 1.0}).MoveOne(Direction::kWrite, memory.block(0), 1).result, -ENOSPC);
  EXPECT_EQ(Faulty({.enospc = 1.0}).MoveOne(Direction::kRead, memory.block(0), 1).result, 0);
  Faulty again({.again = 1.0});
  EXPECT_EQ(again.MoveOne(Direction::kRead, memory.block(0), 1).result, -EAGAIN);
  EXPECT_EQ(again.MoveOne(Direction::kRead, memory.block(0), 1).result, -EINTR);
}

TEST(Faulty, LosesCompletions) {
  Faulty faulty({.lost = 1.0, .first = 1, .last = 1});
  BlockMemory memory(1);
  for (int i = 0; i < 3; ++i) {
    const Transfer transfer = {.memory = memory.block(0), .bytes = kBlock};
    faulty.backend->Submit({&transfer, 1});
    Completion arrived[2];
    EXPECT_EQ(faulty.backend->Reap(arrived, i == 1 ? 1000 : 1'000'000'000), i == 1 ? 0 : 1);
  }
  EXPECT_EQ(faulty.Hits(Fault::kLost), 1);
}

TEST(Faulty, LateOnesAreOvertaken) {
  Faulty faulty({.seed = 2, .late = 0.5});
  BlockMemory memory(kDepth);
  std::vector<Transfer> transfers;
  for (int i = 0; i < kDepth; ++i) {
    transfers.push_back(
        {Direction::kWrite, 0, i * kBlock, memory.block(i), kBlock, static_cast<uint64_t>(i)});
  }
  const std::vector<Completion> all = faulty.Move(transfers);
  ASSERT_EQ(all.size(), transfers.size());
  int overtaken = 0;
  for (size_t i = 1; i < all.size(); ++i) overtaken += all[i].tag < all[i - 1].tag ? 1 : 0;
  EXPECT_GT(overtaken, 5);
  EXPECT_GT(faulty.Hits(Fault::kLate), 10);
}

TEST(Faulty, TheScheduleIsTheSeeds) {
  const auto results = [](int64_t seed, double again) {
    Faulty faulty({.seed = seed, .again = again, .eio = 0.3});
    BlockMemory memory(1);
    std::vector<bool> failed;
    for (int i = 0; i < 200; ++i) {
      failed.push_back(faulty.MoveOne(Direction::kWrite, memory.block(0), 1).result == -EIO);
    }
    return failed;
  };
  EXPECT_EQ(results(1, 0.0), results(1, 0.0));
  EXPECT_NE(results(1, 0.0), results(2, 0.0));
  // One kind more takes the place of some, and moves none.
  const std::vector<bool> alone = results(1, 0.0);
  const std::vector<bool> both = results(1, 0.2);
  for (size_t i = 0; i < alone.size(); ++i) EXPECT_LE(both[i], alone[i]) << i;
}

TEST(Faulty, EveryThirdHalfEveryFifthLater) {
  Faulty faulty({.halve_every = 3, .again_every = 5});
  BlockMemory memory(4);
  std::vector<int64_t> results;
  for (int i = 0; i < 6; ++i) {
    results.push_back(faulty.MoveOne(Direction::kWrite, memory.block(0), 4).result);
  }
  EXPECT_THAT(results, testing::ElementsAre(4 * kBlock, 4 * kBlock, 2 * kBlock, 4 * kBlock, -EAGAIN,
                                            2 * kBlock));
}

}  // namespace
}  // namespace zerohold::io
