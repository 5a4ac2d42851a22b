// The engine over worlds of threads: stages, buckets, records and threads give the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <xmmintrin.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "tests/support/ranks.h"
#include "tests/support/seeded.h"
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

struct Recipe {
  int world = 1;
  DType dtype = DType::kFloat32;
  int micro_batches = 1;
};

std::vector<float> Train(const Recipe& run, const EngineOptions& options) {
  std::vector<std::vector<float>> results(run.world);
  RunRanks(run.world, [&](int rank, Communicator communicator) {
    Model model = ThreeUnits();
    for (ParameterSpec& parameter : model.parameters) parameter.dtype = run.dtype;
    Trainer trainer(options, communicator, model.parameters, model.units, SeededValue);
    for (int step = 0; step < 5; ++step) {
      for (int i = 0; i < run.micro_batches; ++i) {
        trainer.MicroBatch(SeededGradient(rank, step * 10 + i), i + 1 == run.micro_batches);
      }
      trainer.Step();
    }
    results[rank] = trainer.ReadAll();
    EXPECT_TRUE(trainer.engine().Close().ok());
  });
  for (int rank = 1; rank < run.world; ++rank)
    EXPECT_EQ(results[rank], results[0]) << "rank " << rank;
  return results[0];
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
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

class EveryDType : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Engine, EveryDType,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

TEST_P(EveryDType, StagesBucketsRecordsAndThreadsGiveTheSameBits) {
  for (const int world : {1, 2, 3, 4}) {
    const Recipe run{.world = world, .dtype = GetParam()};
    const std::vector<float> reference = Train(run, Options(0));
    for (const int stage : {0, 1, 2, 3}) {
      for (const int64_t bucket : {256, 700, 1 << 20}) {
        for (const int64_t record : {256, 1 << 18}) {
          EngineOptions options = Options(stage);
          options.bucket_elems = bucket;
          options.record_elems = record;
          options.update_threads = 1 + static_cast<int>(bucket % 3);
          ASSERT_TRUE(SameBits(Train(run, options), reference))
              << "world " << world << " stage " << stage << " bucket " << bucket << " record "
              << record;
        }
      }
    }
  }
}

TEST_P(EveryDType, MicroBatchesSumAlikeWhereTheyAreSummedAlike) {
  for (const int world : {1, 2, 3}) {
    const Recipe run{.world = world, .dtype = GetParam(), .micro_batches = 3};
    const auto train = [&](int stage) {
      EngineOptions options = Options(stage);
      options.max_micro_batches = 3;
      return Train(run, options);
    };
    EXPECT_TRUE(SameBits(train(0), train(1))) << world;
    EXPECT_TRUE(SameBits(train(2), train(3))) << world;
  }
}

// Micro-batch i of a step belongs to rank i mod world: the same global batch gives the same bits at
// every stage and in every world of a power of two.
TEST_P(EveryDType, ReproducibleSumsDoNotDependOnTheWorld) {
  for (const int batches : {4, 12}) {
    std::vector<float> reference;
    for (const int world : {1, 2, 4}) {
      for (const int stage : {0, 1, 2, 3}) {
        EngineOptions options = Options(stage);
        options.reproducible = true;
        options.max_micro_batches = batches;
        std::vector<float> result;
        RunRanks(world, [&](int rank, Communicator communicator) {
          Model model = ThreeUnits();
          for (ParameterSpec& parameter : model.parameters) parameter.dtype = GetParam();
          Trainer trainer(options, communicator, model.parameters, model.units, SeededValue);
          for (int step = 0; step < 3; ++step) {
            for (int i = rank; i < batches; i += world) {
              trainer.MicroBatch(SeededGradient(i, step), i + world >= batches);
            }
            trainer.Step();
          }
          const std::vector<float> values = trainer.ReadAll();
          if (rank == 0) result = values;
          EXPECT_TRUE(trainer.engine().Close().ok());
        });
        if (reference.empty()) reference = result;
        EXPECT_TRUE(SameBits(result, reference))
            << batches << " world " << world << " stage " << stage;
      }
    }
  }
}

// The weighted mean is the plain one when all weights are the same power of two, and counts samples
// when they are numbers of samples.
TEST(Engine, WeightedMeanDividesByTheSumOfWeights) {
  RunStages({2}, [](EngineOptions options, int rank, Communicator ranks) {
    options.reduction = GradientReduction::kWeightedMean;
    Trainer trainer(options, ranks, {{"w", {300}}}, {{"all", {"w"}, {}}},
                    [](ParameterId, int64_t) { return 0.0f; });
    Engine& engine = trainer.engine();
    for (const double bad : {0.0, -1.0, 1e38, 1e-38, 1e-50, HUGE_VAL, std::nan("")}) {
      EXPECT_TRUE(absl::IsInvalidArgument(engine.BeginMicroBatch(bad)));
    }
    // Weights 1 and 3 on rank 0, 2 and 2 on rank 1; gradients 4, 8 and 1, 3: (4 + 24 + 2 + 6) / 8.
    const double weights[2][2] = {{1, 3}, {2, 2}};
    const float gradients[2][2] = {{4, 8}, {1, 3}};
    for (int i = 0; i < 2; ++i) {
      ASSERT_TRUE(engine.BeginMicroBatch(weights[rank][i], i == 1).ok());
      trainer.Backward(0, [&](ParameterId, std::span<const float>, std::span<float> gradient) {
        for (float& value : gradient) value += gradients[rank][i];
      });
    }
    const StepStats stats = trainer.Step();
    EXPECT_NEAR(stats.grad_norm, 4.5 * std::sqrt(300.0), 1e-4);
    EXPECT_EQ(trainer.Read(0, StateKind::kGradient)[299], 4.5f);
  });
}

// Unscaled before the norm, halved after a skip, grown after clean steps; a skip changes nothing.
TEST_P(EveryDType, LossScaleFollowsItsRule) {
  RunStages({2}, [](EngineOptions options, int rank, Communicator ranks) {
    options.loss_scale = {.enabled = true, .initial = 1024, .growth_interval = 2};
    Trainer trainer(options, ranks, {{"w", {2}, GetParam()}}, {{"all", {"w"}, {}}},
                    [](ParameterId, int64_t) { return 1.0f; });
    const auto step = [&](float bad) {
      trainer.MicroBatch([&](ParameterId, std::span<const float>, std::span<float> gradient) {
        const auto scale = static_cast<float>(trainer.engine().LossScale());
        gradient[0] += 3 * scale + (rank == 1 ? bad : 0.0f);
        gradient[1] += 4 * scale;
      });
      return trainer.Step();
    };
    EXPECT_EQ(trainer.engine().LossScale(), 1024);
    EXPECT_NEAR(step(0).grad_norm, 5.0, 1e-3);
    EXPECT_NEAR(step(0).grad_norm, 5.0, 1e-3);
    EXPECT_EQ(trainer.engine().LossScale(), 2048);
    const std::vector<float> before = trainer.Read(0);
    const StepStats skipped = step(INFINITY);
    EXPECT_FALSE(skipped.applied);
    EXPECT_EQ(skipped.step, 2);
    EXPECT_EQ(trainer.engine().LossScale(), 1024);
    EXPECT_EQ(trainer.Read(0), before);
    EXPECT_TRUE(step(0).applied);
  });
}

// An evaluation pass has its next units gathered while one of them is written.
TEST(Engine, WriteOfAUnitThatIsPrefetched) {
  RunRanks(2, [](int, Communicator ranks) {
    EngineOptions options = Options(3);
    options.max_live_parameters_bytes = 4 * (int64_t{2} << 20);
    Trainer trainer(options, ranks, TensorsInUnits({400000, 400000, 400000, 400000}),
                    Constant(0.0f));
    Engine& engine = trainer.engine();
    for (int pass = 1; pass < 5; ++pass) {
      for (UnitId unit = 0; unit < 4; ++unit) {
        ASSERT_TRUE(engine.Acquire(unit, AcquireMode::kEvaluate).ok());
        EXPECT_EQ(trainer.Values(unit)[399999], unit == 1 ? pass - 1 : 0);
        ASSERT_TRUE(engine.Release(unit).ok());
      }
      ASSERT_TRUE(engine.Acquire(0, AcquireMode::kEvaluate).ok());
      ASSERT_TRUE(engine.Release(0).ok());
      const std::vector<float> values(400000, static_cast<float>(pass));
      ASSERT_TRUE(engine.Write(1, StateKind::kMaster, 0, values).ok());
    }
  });
}

// Told alike on all ranks, wherever the shard lies; the trainer may go on.
TEST_P(EveryDType, TooManySkipsNameTheFirstParameter) {
  RunStages({1, 2, 3}, [](EngineOptions options, int rank, Communicator ranks) {
    options.loss_scale = {.enabled = true, .initial = 1024, .floor = 512, .max_skips = 3};
    ModelSpec model = TensorsInUnits({300, 2000, 0, 500});
    for (ParameterSpec& spec : model.parameters) spec.dtype = GetParam();
    Trainer trainer(options, ranks, model, Constant(1.0f));
    const auto bad = [&](ParameterId id, std::span<const float>, std::span<float> gradient) {
      std::ranges::fill(gradient, 1.0f);
      if (id == 1 && rank == ranks.size() - 1) gradient[1999] = NAN;
      if (id == 3 && rank == 0) gradient[0] = INFINITY;
    };
    for (int round = 0; round < 2; ++round) {
      for (int skip = 0; skip < 2; ++skip) EXPECT_FALSE(trainer.Step(bad).applied);
      for (const int skips : {3, 4}) {
        const Status stopped = trainer.TryStep(bad).status();
        EXPECT_TRUE(absl::IsFailedPrecondition(stopped)) << stopped;
        EXPECT_EQ(stopped.message(),
                  "Step: " + std::to_string(skips) +
                      " steps in a row were skipped at a loss scale down to 512; the first "
                      "parameter whose gradient is not finite is b; lower the learning rate, look "
                      "at its inputs, or raise loss_scale.max_skips");
      }
      EXPECT_TRUE(trainer.Step(Gradients({{1.0f}, {1.0f}, {1.0f}, {1.0f}})).applied);
    }
  });
}

// Stage 3 learns the order of acquires and has units there before they are asked for; what is
// touched outside is refused or found.
TEST(Engine, FramesBoundWhatIsLive) {
  RunRanks(2, [](int rank, Communicator ranks) {
    EngineOptions options = Options(3);
    options.max_live_parameters_bytes = 3 * (int64_t{2} << 20);
    options.max_live_gradients_bytes = 2 * (int64_t{2} << 20);
    std::vector<ParameterSpec> parameters;
    std::vector<UnitSpec> units;
    for (int i = 0; i < 8; ++i) {
      const std::string name(1, static_cast<char>('a' + i));
      parameters.push_back({name, {400000}});
      units.push_back({"unit_" + name, {name}, {}});
    }
    Trainer trainer(options, ranks, parameters, units, SeededValue);
    Engine& engine = trainer.engine();
    const void* const address = engine.Parameter(5).data;
    StepStats stats;
    for (int step = 0; step < 4; ++step) {
      ASSERT_TRUE(engine.BeginMicroBatch().ok());
      for (UnitId unit = 0; unit < 8; ++unit) {
        ASSERT_TRUE(engine.Acquire(unit, AcquireMode::kForward).ok());
        EXPECT_EQ(trainer.Values(unit).size(), 400000u);
        ASSERT_TRUE(engine.Release(unit).ok());
      }
      for (UnitId unit = 7; unit >= 0; --unit) trainer.Backward(unit, SeededGradient(rank, step));
      stats = trainer.Step();
      EXPECT_TRUE(stats.applied);
    }
    EXPECT_EQ(engine.Parameter(5).data, address);
    EXPECT_EQ(stats.route_changes, 0);
    EXPECT_EQ(stats.prefetch_misses, 0);
    EXPECT_EQ(engine.Memory().Bytes(Tier::kHost, MemoryKind::kFrames), 5 * (int64_t{2} << 20));
  });
}

// A rank that left a unit out takes part as zero; the reductions of that round may still be on
// their way when the unit's next gradient is in its frame.
TEST(Engine, AUnitThatWasLeftOutKeepsItsNextGradient) {
  RunRanks(2, [](int rank, const Communicator& ranks) {
    EngineOptions options = Options(2);
    options.reduction = GradientReduction::kSum;
    options.clip_grad_norm = 0.0;
    options.max_micro_batches = 4;
    options.max_live_gradients_bytes = 2 * (int64_t{2} << 20);
    options.bucket_elems = 256;  // many reductions
    Trainer trainer(options, ranks, {{"large", {500000}}, {"small", {10}}},
                    {{"unit_large", {"large"}, {}}, {"unit_small", {"small"}, {}}}, Constant(0));
    const GradientFunction ones = Gradients({{1}, {1}});
    for (int batch = 0; batch < 4; ++batch) {
      const bool left_out = batch == 0 && rank == 1;
      trainer.MicroBatch(ones, batch == 3,
                         left_out ? std::vector<UnitId>{1} : std::vector<UnitId>{});
    }
    trainer.Step();
    EXPECT_THAT(trainer.Read(0, StateKind::kGradient), ::testing::Each(7.0f));
    EXPECT_THAT(trainer.Read(1, StateKind::kGradient), ::testing::Each(8.0f));
  });
}

TEST(Engine, AForeignCopyIsRefusedByName) {
  RunStages({2}, [](EngineOptions options, int, Communicator ranks) {
    Trainer trainer(options, ranks, {{"v", {100}}, {"w", {5000}}}, {{"all", {"v", "w"}, {}}},
                    [](ParameterId, int64_t) { return 1.0f; });
    const auto gradient = [](ParameterId, std::span<const float>, std::span<float> sums) {
      for (float& value : sums) value += 1.0f;
    };
    trainer.MicroBatch(gradient);
    trainer.Step();
    Engine& engine = trainer.engine();
    ASSERT_TRUE(engine.BeginMicroBatch().ok());
    ASSERT_TRUE(engine.Acquire(0, AcquireMode::kForward).ok());
    for (float& value : trainer.Values(1)) value = 7.0f;
    ASSERT_TRUE(engine.Release(0).ok());
    trainer.Backward(0, gradient);
    const Status refused = engine.Step().status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_NE(refused.message().find("parameter w"), absl::string_view::npos) << refused;
    EXPECT_TRUE(engine.AdoptParameters().ok());
    trainer.MicroBatch(gradient);
    EXPECT_TRUE(trainer.Step().applied);
  });
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
