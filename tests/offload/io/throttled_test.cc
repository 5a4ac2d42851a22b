// Rates and latencies as set, measured loosely, and no core burnt for them.
#include <gmock/gmock.h>
#include <time.h>

#include <algorithm>

#include "offload/io/backends.h"
#include "offload/io/mover.h"
#include "src/telemetry/trace.h"
#include "tests/offload/io/answer.h"
#include "tests/offload/io/block_memory.h"

namespace zerohold::io {
namespace {

constexpr double kMiB = 1 << 20;
constexpr int kMoves = 20;
constexpr int64_t kBlocks = 64;  // each
constexpr double kBytes = kMoves * kBlocks * kBlock;

double CpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Took {
  double wall_s = 0.0;
  double cpu_s = 0.0;
};

class Throttled : public testing::Test {
 protected:
  void Throttle(const ThrottleSpec& spec) {
    mover_ =
        Mover::Create(CreateThrottledBackend(CreateMemoryBackend(), spec), {{-1, "/disk"}}, {}, {})
            .value();
    Run({Direction::kWrite}, kMoves);  // memory is touched, queues are warm
  }

  // `count` moves each of these directions, all at once.
  Took Run(const std::vector<Direction>& directions, int count) {
    std::vector<Answer> answers(count * directions.size());
    const int64_t begin_ns = telemetry::NowNs();
    const double cpu_s = CpuSeconds();
    for (size_t i = 0; i < answers.size(); ++i) {
      mover_->Move(answers[i].To({.direction = directions[i % directions.size()],
                                  .offset_bytes = 0,
                                  .memory = memory_.block(0),
                                  .bytes = kBlocks * kBlock}));
    }
    for (Answer& answer : answers) EXPECT_TRUE(answer.Get().ok());
    return {1e-9 * static_cast<double>(telemetry::NowNs() - begin_ns), CpuSeconds() - cpu_s};
  }

  // Others share the machine: the best of a few tries is what the throttle takes.
  Took Best(const std::vector<Direction>& directions, int count, double enough_s) {
    Took best = Run(directions, count);
    for (int i = 0; i < 7 && best.wall_s > enough_s; ++i) {
      const Took again = Run(directions, count);
      best = {std::min(best.wall_s, again.wall_s), std::min(best.cpu_s, again.cpu_s)};
    }
    return best;
  }

  BlockMemory memory_{kBlocks};
  std::unique_ptr<Mover> mover_;
};

TEST_F(Throttled, RatesAreAsSetAndWaitsSleep) {
  Throttle({.read_rate = 50 * kMiB, .write_rate = 25 * kMiB});
  const double read_s = kBytes / (50 * kMiB);
  const Took reads = Best({Direction::kRead}, kMoves, 1.15 * read_s);
  EXPECT_GE(reads.wall_s, 0.99 * read_s);
  EXPECT_LE(reads.wall_s, 1.15 * read_s);
  EXPECT_LT(reads.cpu_s, 0.3 * reads.wall_s);
  const double write_s = kBytes / (25 * kMiB);
  const Took writes = Best({Direction::kWrite}, kMoves, 1.15 * write_s);
  EXPECT_GE(writes.wall_s, 0.99 * write_s);
  EXPECT_LE(writes.wall_s, 1.15 * write_s);
}

TEST_F(Throttled, ReadsAndWritesAreTwoLinks) {
  Throttle({.read_rate = 50 * kMiB, .write_rate = 50 * kMiB});
  const double each_s = kBytes / (50 * kMiB);
  const Took both = Best({Direction::kRead, Direction::kWrite}, kMoves, 1.15 * each_s);
  EXPECT_GE(both.wall_s, 0.99 * each_s);
  EXPECT_LE(both.wall_s, 1.15 * each_s);
}

TEST_F(Throttled, LatencyIsSharedByThoseInFlight) {
  Throttle({.latency_s = 0.03});
  const Took together = Best({Direction::kRead}, 10, 0.06);
  EXPECT_GE(together.wall_s, 0.03);
  EXPECT_LE(together.wall_s, 0.06);
  const int64_t begin_ns = telemetry::NowNs();
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(MoveNow(*mover_, {.memory = memory_.block(0), .bytes = kBlock}).ok());
  }
  EXPECT_GE(telemetry::NowNs() - begin_ns, 4 * 30'000'000);
}

// A transfer that is cut into pieces takes no longer.
TEST_F(Throttled, ChargesWhatWasMoved) {
  auto shortened = CreateFaultyBackend(CreateMemoryBackend(), {.short_transfer = 0.7});
  mover_ = Mover::Create(CreateThrottledBackend(std::move(shortened), {.write_rate = 25 * kMiB}),
                         {{-1, "/disk"}}, {}, {})
               .value();
  const double write_s = kBytes / (25 * kMiB);
  const Took writes = Best({Direction::kWrite}, kMoves, 1.15 * write_s);
  EXPECT_GE(writes.wall_s, 0.99 * write_s);
  EXPECT_LE(writes.wall_s, 1.15 * write_s);
}

}  // namespace
}  // namespace zerohold::io
