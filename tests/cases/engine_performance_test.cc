// What overlap is there for, by the ids of the cases; times are of sleeps, so that a slow machine
// does not change them much.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <thread>

#include "src/comm/communicator.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

using Clock = std::chrono::steady_clock;

struct Delays {
  std::chrono::milliseconds gather{0};  // of a unit's parameters
  std::chrono::milliseconds reduce{0};  // of a bucket
};

// Carries everything as the other does, but some of it only after a while.
class SlowCommunicator final : public comm::Communicator {
 public:
  SlowCommunicator(std::shared_ptr<comm::Communicator> inner, const Delays& delays)
      : inner_(std::move(inner)), delays_(delays) {
    Configure(inner_->settings());
  }

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  int local_rank() const override { return inner_->local_rank(); }
  int local_size() const override { return inner_->local_size(); }
  bool any_thread() const override { return inner_->any_thread(); }
  void Cancel(const absl::Status& why) override { inner_->Cancel(why); }

  absl::StatusOr<std::shared_ptr<Communicator>> Duplicate() override {
    auto twin = Inner().Duplicate();
    if (!twin.ok()) return twin;
    return std::make_shared<SlowCommunicator>(*std::move(twin), delays_);
  }
  absl::Status AllGather(const comm::Label& label, void* buffer,
                         std::span<const comm::Piece> pieces) override {
    if (std::string_view(label.item) == "parameters") std::this_thread::sleep_for(delays_.gather);
    return Inner().AllGather(label, buffer, pieces);
  }
  absl::Status ReduceScatter(const comm::Label& label,
                             const comm::ReduceScatterOperands& operands) override {
    std::this_thread::sleep_for(delays_.reduce);
    return Inner().ReduceScatter(label, operands);
  }
  void FinishSum(const comm::RunningSums& sums, int64_t rounds, int64_t elems,
                 const comm::Mean& mean) override {
    inner_->FinishSum(sums, rounds, elems, mean);
  }
  absl::Status Broadcast(const comm::Label& label, void* buffer, int64_t bytes, int root) override {
    return Inner().Broadcast(label, buffer, bytes, root);
  }
  absl::Status AllReduce(const comm::Label& label, std::span<int64_t> bits,
                         std::span<int64_t> maxima, std::span<int64_t> sums) override {
    return Inner().AllReduce(label, bits, maxima, sums);
  }

 private:
  // As this one has been configured by now.
  comm::Communicator& Inner() {
    inner_->Configure(settings_);
    inner_->SetScratch(scratch_);
    return *inner_;
  }

  const std::shared_ptr<comm::Communicator> inner_;
  const Delays delays_;
};

Communicator Slow(const Communicator& ranks, const Delays& delays) {
  return Communicator(std::make_shared<SlowCommunicator>(ranks.impl(), delays));
}

// A gradient that takes its time.
GradientFunction Ones(std::chrono::milliseconds compute) {
  return [compute](ParameterId, std::span<const float>, std::span<float> gradient) {
    std::this_thread::sleep_for(compute);
    for (float& element : gradient) element += 1.0f;
  };
}

constexpr int kTensors = 12;
constexpr std::chrono::milliseconds kCompute(5);

// A forward and a backward pass over all tensors, and the step.
StepStats PassOver(Trainer& trainer) {
  Engine& engine = trainer.engine();
  EXPECT_TRUE(engine.BeginMicroBatch().ok());
  for (UnitId unit = 0; unit < kTensors; ++unit) {
    EXPECT_TRUE(engine.Acquire(unit, AcquireMode::kForward).ok());
    std::this_thread::sleep_for(kCompute);
    EXPECT_TRUE(engine.Release(unit).ok());
  }
  for (UnitId unit = kTensors - 1; unit >= 0; --unit) trainer.Backward(unit, Ones(kCompute));
  return trainer.Step();
}

// In a fixed order of acquires nearly every gather is over when it is asked for, from the second
// step on, and costs no time. Where the route ends, at the first tensor of a step, nothing is
// ahead.
TEST(PerformanceCases, PRF_02) {
  RunRanks(2, [](int, const Communicator& ranks) {
    Trainer trainer(OptionsOfStage(3), Slow(ranks, {.gather = std::chrono::milliseconds(2)}),
                    TensorsInUnits(std::vector<int64_t>(kTensors, 3000)), Constant(1));
    // The best of four steps: what a busy machine does to some of them is not the engine's.
    int64_t most_hits = 0;
    Clock::duration shortest = Clock::duration::max();
    for (int step = 1; step <= 5; ++step) {
      const auto begin = Clock::now();
      const StepStats stats = PassOver(trainer);
      if (step == 1) {
        EXPECT_GE(stats.prefetch_misses, kTensors);  // nobody knows the order yet
        continue;
      }
      shortest = std::min(shortest, Clock::now() - begin);
      most_hits = std::max(most_hits, stats.prefetch_hits);
      EXPECT_EQ(stats.prefetch_hits + stats.prefetch_late, 2 * kTensors) << step;
      EXPECT_EQ(stats.prefetch_misses, 0) << step;
      EXPECT_EQ(stats.route_changes, 0) << step;
    }
    EXPECT_GE(most_hits, 2 * 10);
    // 25 % more than compute is half of what the gathers would add.
    EXPECT_LE(shortest, 2 * kTensors * kCompute * 5 / 4);
  });
}

// Another order is served on demand, counted, and learned by the next step.
TEST(PerformanceCases, PRF_02_AnotherOrderIsLearned) {
  RunStages({1, 2, 3}, [](const EngineOptions& options, int, Communicator ranks) {
    if (options.zero_stage < 3) return;
    Trainer trainer(options, ranks, TensorsInUnits(std::vector<int64_t>(kTensors, 3000)),
                    [](ParameterId id, int64_t) { return static_cast<float>(id); });
    Engine& engine = trainer.engine();
    const auto pass = [&](int stride) {
      EXPECT_TRUE(engine.BeginMicroBatch().ok());
      for (int i = 0; i < kTensors; ++i) {
        const UnitId unit = i * stride % kTensors;
        EXPECT_TRUE(engine.Acquire(unit, AcquireMode::kForward).ok());
        EXPECT_NEAR(trainer.Values(unit)[2999], unit, 0.1);
        EXPECT_TRUE(engine.Release(unit).ok());
      }
      for (UnitId unit = kTensors - 1; unit >= 0; --unit) {
        trainer.Backward(unit, [](ParameterId, std::span<const float>, std::span<float>) {});
      }
      return trainer.Step();
    };
    pass(1);
    EXPECT_EQ(pass(1).prefetch_misses, 0);
    const StepStats changed = pass(5);
    EXPECT_GT(changed.prefetch_misses, 0);
    EXPECT_GT(changed.route_changes, 0);
    const StepStats learned = pass(5);
    EXPECT_EQ(learned.prefetch_misses, 0);
    EXPECT_EQ(learned.route_changes, changed.route_changes);
  });
}

// Reductions run under the backward pass. At stages 0 and 1, where a micro-batch that is not the
// last has none, they can be made to wait for the step, one after the other.
TEST(PerformanceCases, PRF_04) {
  constexpr int kBuckets = 8;
  constexpr std::chrono::milliseconds kBackward(10), kReduce(8);
  RunStages({2}, [&](EngineOptions options, int, Communicator ranks) {
    options.max_micro_batches = 1;
    Trainer trainer(options, Slow(ranks, {.reduce = kReduce}),
                    TensorsInUnits(std::vector<int64_t>(kBuckets, 3000)), Constant(1));
    const auto shortest = [&](bool overlap) {
      Clock::duration best = Clock::duration::max();
      for (int step = 0; step < 4; ++step) {
        const auto begin = Clock::now();
        trainer.MicroBatch(Ones(kBackward), overlap);
        trainer.Step();
        best = std::min(best, Clock::now() - begin);
      }
      return best;
    };
    EXPECT_LE(shortest(true), std::chrono::milliseconds(110));
    if (options.zero_stage < 2) {
      EXPECT_GE(shortest(false), kBuckets * (kBackward + kReduce));
    }
  });
}

}  // namespace
}  // namespace zerohold::testing
