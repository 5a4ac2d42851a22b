// Under any schedule of faults every byte ends where it should, or the answer says why not.
#include <gmock/gmock.h>

#include <map>
#include <optional>
#include <random>

#include "offload/io/backends.h"
#include "offload/io/mover.h"
#include "tests/offload/io/answer.h"
#include "tests/offload/io/block_memory.h"
#include "tests/offload/io/fault_tally.h"

namespace zerohold::io {
namespace {

using testing::HasSubstr;

constexpr int kSeeds = 250;
constexpr int64_t kBlocks = 64;
constexpr int kFiles = 3;
constexpr int kRounds = 3;

// Rates of a schedule, none of them always there.
FaultSpec Schedule(int seed) {
  std::mt19937 random(seed);
  const auto rate = [&random](double most) {
    return random() % 3 == 0 ? 0.0 : most * static_cast<double>(random() % 1000) / 1000.0;
  };
  FaultSpec spec;
  spec.seed = seed;
  spec.short_transfer = rate(0.9);
  spec.again = rate(0.5);
  spec.eio = rate(0.1);
  spec.enospc = rate(0.1);
  spec.late = rate(0.8);
  spec.first = static_cast<int64_t>(random() % 20);
  spec.halve_every = static_cast<int64_t>(random() % 5);
  return spec;
}

struct Piece {
  int file;
  int64_t first;  // block
  int64_t blocks;
};

// The file cut into pieces of random sizes, in random order.
std::vector<Piece> Pieces(std::mt19937& random) {
  std::vector<Piece> pieces;
  for (int file = 0; file < kFiles; ++file) {
    for (int64_t at = 0; at < kBlocks; at += pieces.back().blocks) {
      pieces.push_back({file, at, std::min<int64_t>(1 + random() % 11, kBlocks - at)});
    }
  }
  std::ranges::shuffle(pieces, random);
  return pieces;
}

class World {
 public:
  World(int seed, FaultTally* tally)
      : random_(seed),
        mover_(Mover::Create(
                   CreateFaultyBackend(CreateMemoryBackend(), Schedule(seed), CountIn(*tally)),
                   {{-1, "/f0"}, {-1, "/f1"}, {-1, "/f2"}}, {}, {.depth = 1 + seed % 9})
                   .value()) {}

  // Moves every block once; a failed answer names what failed.
  void Round(Direction direction) {
    const std::vector<Piece> pieces = Pieces(random_);
    std::vector<Answer> answers(pieces.size());
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Piece& piece = pieces[i];
      for (int64_t b = 0; b < piece.blocks; ++b) {
        const int64_t block = piece.file * kBlocks + piece.first + b;
        memory_.Fill(block, direction == Direction::kWrite ? Value(block) : 0);
      }
      mover_->Move(answers[i].To({.direction = direction,
                                  .file = piece.file,
                                  .offset_bytes = piece.first * kBlock,
                                  .memory = memory_.block(piece.file * kBlocks + piece.first),
                                  .bytes = piece.blocks * kBlock}));
    }
    for (size_t i = 0; i < pieces.size(); ++i) Check(direction, pieces[i], answers[i].Get());
    ++round_;
  }

  int failures() const { return failures_; }

 private:
  uint64_t Value(int64_t block) const { return static_cast<uint64_t>(round_ * 1'000'000 + block); }

  void Check(Direction direction, const Piece& piece, const absl::Status& status) {
    failures_ += status.ok() ? 0 : 1;
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr("/f" + std::to_string(piece.file) + ": " +
                            (direction == Direction::kRead ? "read" : "write") + " of " +
                            std::to_string(piece.blocks * kBlock) + " bytes at " +
                            std::to_string(piece.first * kBlock)));
      EXPECT_TRUE(absl::IsDataLoss(status) || absl::IsResourceExhausted(status)) << status;
    }
    for (int64_t b = 0; b < piece.blocks; ++b) {
      const int64_t block = piece.file * kBlocks + piece.first + b;
      if (direction == Direction::kWrite) {
        written_[block] = status.ok() ? std::optional(Value(block)) : std::nullopt;
      } else if (status.ok() && written_[block]) {
        ASSERT_TRUE(memory_.Holds(block, *written_[block])) << block;
      }
    }
  }

  std::mt19937 random_;
  BlockMemory memory_{kFiles * kBlocks};
  std::map<int64_t, std::optional<uint64_t>> written_;  // nothing after a failed write
  int64_t round_ = 1;
  int failures_ = 0;
  std::unique_ptr<Mover> mover_;
};

TEST(MoverProperty, EveryByteEndsWhereItShouldOrTheAnswerSaysWhy) {
  FaultTally tally;
  int without_failure = 0;
  int with_failure = 0;
  for (int seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed, &tally);
    for (int round = 0; round < kRounds; ++round) {
      world.Round(Direction::kWrite);
      world.Round(Direction::kRead);
    }
    ++(world.failures() == 0 ? without_failure : with_failure);
    if (testing::Test::HasFatalFailure()) return;
  }
  const auto hits = tally.Take();
  for (const Fault fault :
       {Fault::kShortTransfer, Fault::kAgain, Fault::kEio, Fault::kEnospc, Fault::kLate}) {
    EXPECT_GT(hits[static_cast<int>(fault)], 100) << static_cast<int>(fault);
  }
  EXPECT_GT(without_failure, 10);
  EXPECT_GT(with_failure, 10);
}

}  // namespace
}  // namespace zerohold::io
