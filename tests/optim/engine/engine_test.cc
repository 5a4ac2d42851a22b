// The engine over worlds of threads: stages, buckets, records and threads give the same bits.
#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

struct Model {
  std::vector<ParameterSpec> parameters;
  std::vector<UnitSpec> units;
};

Model ThreeUnits() {
  return {{{"embedding", {37, 11}},
           {"block.weight", {1000, 3}},
           {"block.bias", {7}},
           {"block.empty", {0, 8}},
           {"head", {}}},
          {{"in", {"embedding"}, {}},
           {"block", {"block.weight", "block.bias", "block.empty"}, {}},
           {"out", {"head"}, {"embedding"}}}};
}

float First(ParameterId id, int64_t i) { return std::sin(static_cast<float>(id * 1000 + i)); }

// Depends on rank, values and step, through plain arithmetic.
GradientFunction Gradient(int rank, int step) {
  return [=](ParameterId id, std::span<const float> values, std::span<float> gradient) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      const auto phase = static_cast<float>((i * 7 + id * 13 + rank * 5 + step * 3) % 97);
      gradient[i] += values[i] * 0.1f + 0.01f * (phase - 48.0f);
    }
  };
}

std::vector<float> Train(int world, const EngineOptions& options, int micro_batches = 1) {
  std::vector<std::vector<float>> results(world);
  RunRanks(world, [&](int rank, Communicator communicator) {
    const Model model = ThreeUnits();
    Trainer trainer(options, communicator, model.parameters, model.units, First);
    for (int step = 0; step < 5; ++step) {
      for (int i = 0; i < micro_batches; ++i) {
        trainer.MicroBatch(Gradient(rank, step * 10 + i), i + 1 == micro_batches);
      }
      trainer.Step();
    }
    results[rank] = trainer.ReadAll();
    EXPECT_TRUE(trainer.engine().Close().ok());
  });
  for (int rank = 1; rank < world; ++rank) EXPECT_EQ(results[rank], results[0]) << "rank " << rank;
  return results[0];
}

EngineOptions Options(int stage) {
  EngineOptions options;
  options.zero_stage = stage;
  options.groups[0].learning_rate = 0.01;
  options.groups[0].weight_decay = 0.1;
  options.clip_grad_norm = 1.0;
  options.communication_timeout_s = 20;
  return options;
}

TEST(Engine, StagesBucketsRecordsAndThreadsGiveTheSameBits) {
  for (const int world : {1, 2, 3, 4, 7}) {
    const std::vector<float> reference = Train(world, Options(0));
    for (const int stage : {0, 1}) {
      for (const int64_t bucket : {256, 700, 1 << 20}) {
        for (const int64_t record : {256, 1024, 1 << 18}) {
          EngineOptions options = Options(stage);
          options.bucket_elems = bucket;
          options.record_elems = record;
          options.update_threads = 1 + static_cast<int>(bucket % 3);
          const std::vector<float> result = Train(world, options);
          ASSERT_EQ(std::memcmp(result.data(), reference.data(), reference.size() * sizeof(float)),
                    0)
              << "world " << world << " stage " << stage << " bucket " << bucket << " record "
              << record;
        }
      }
    }
  }
}

TEST(Engine, MicroBatchesSumInStagesAlike) {
  for (const int world : {1, 2, 3})
    EXPECT_EQ(Train(world, Options(0), 3), Train(world, Options(1), 3));
}

// Threads inherit the floating-point state of who makes them: a trainer that flushes denormals to
// zero must not make the engine do so.
TEST(Engine, KeepsDenormalsWhateverTheTrainerDoes) {
  const auto moment = [](bool flush) {
    std::vector<float> moments;
    std::thread([&] {
      constexpr unsigned kFlush = 0x8040;  // flush to zero, denormals are zero
      if (flush) _mm_setcsr(_mm_getcsr() | kFlush);
      EngineOptions options;
      options.update_threads = 2;
      Trainer trainer(options, SelfCommunicator(), {{"w", {100000}}}, {{"all", {"w"}, {}}},
                      [](ParameterId, int64_t) { return 1.0f; });
      const float denormal = 1e-40f;
      trainer.MicroBatch([&](ParameterId, std::span<const float>, std::span<float> gradient) {
        for (float& value : gradient) std::memcpy(&value, &denormal, sizeof(value));
      });
      trainer.Step();
      moments = trainer.Read(0, StateKind::kMoment1);
    }).join();
    return moments;
  };
  const std::vector<float> kept = moment(false);
  const std::vector<float> flushed = moment(true);
  EXPECT_EQ(std::memcmp(kept.data(), flushed.data(), kept.size() * sizeof(float)), 0);
  EXPECT_NE(
      std::memcmp(kept.data(), std::vector<float>(kept.size()).data(), kept.size() * sizeof(float)),
      0);
}

}  // namespace
}  // namespace zerohold::testing
