// Updates under the next forward pass: the same bits as without, wherever records rest, and a
// forward pass that sees no unit before its update.
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <thread>

#include "tests/support/ranks.h"
#include "tests/support/seeded.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

ModelSpec Model(DType dtype) {
  ModelSpec model = TensorsInUnits({3000, 500, 1, 1200, 77});
  for (ParameterSpec& parameter : model.parameters) parameter.dtype = dtype;
  model.units[4].uses = {"a"};
  return model;
}

EngineOptions Options(int stage, bool overlap) {
  EngineOptions options;
  options.zero_stage = stage;
  options.overlap_next_forward = overlap;
  options.groups[0].learning_rate = 0.01;
  options.clip_grad_norm = 1.0;
  options.communication_timeout_s = 20;
  options.bucket_elems = options.record_elems = 512;
  options.persistence_threshold_elems = 100;
  options.notice = [](const std::string&) {};
  return options;
}

// One forward pass; appends what it sees.
void Forward(Trainer& trainer, int units, std::vector<float>& seen) {
  for (UnitId unit = 0; unit < units; ++unit) {
    ASSERT_TRUE(trainer.engine().Acquire(unit, AcquireMode::kForward).ok());
    const TensorView view = trainer.engine().Parameter(unit);
    for (int64_t i = 0; i < view.elems; ++i) seen.push_back(Trainer::Get(view, i));
    ASSERT_TRUE(trainer.engine().Release(unit).ok());
  }
}

// What forward passes see, and the states at the end, of rank 0; a unit without a gradient and a
// skip among the steps.
std::vector<float> Train(int world, DType dtype, const EngineOptions& options) {
  std::vector<float> result;
  RunRanks(world, [&](int rank, const Communicator& communicator) {
    const ModelSpec model = Model(dtype);
    const auto units = static_cast<int>(model.units.size());
    Trainer trainer(options, communicator, model, SeededValue);
    Engine& engine = trainer.engine();
    std::vector<float> seen;
    for (int step = 0; step < 6; ++step) {
      ASSERT_TRUE(engine.BeginMicroBatch().ok());
      Forward(trainer, units, seen);
      for (UnitId unit = units - 1; unit >= 0; --unit) {
        if (step == 2 && unit == 3) continue;
        const auto infinite = [&](ParameterId, std::span<const float>, std::span<float> gradient) {
          gradient[0] = INFINITY;
        };
        trainer.Backward(unit, step == 3 ? infinite : SeededGradient(rank, step));
      }
      EXPECT_EQ(trainer.Step().applied, step != 3);
      if (step == 4) {  // calls that wait for it
        EXPECT_TRUE(engine.Quiesce().ok());
        trainer.WriteUnit(1, Constant(0.25f));
      }
    }
    const std::vector<float> states = trainer.ReadStates();
    seen.insert(seen.end(), states.begin(), states.end());
    Forward(trainer, units, seen);
    EXPECT_TRUE(engine.Close().ok());
    if (rank == 0) result = seen;
  });
  return result;
}

TEST(OverlapNextForward, ChangesNoBit) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int world : {1, 2, 3}) {
      for (const int stage : {0, 1, 2, 3}) {
        SCOPED_TRACE(absl::StrCat(NameOf(dtype), ", world ", world, ", stage ", stage));
        const std::vector<float> expected = Train(world, dtype, Options(stage, false));
        EngineOptions options = Options(stage, true);
        EXPECT_EQ(Train(world, dtype, options), expected);
        options.offload.nvme_paths = {std::filesystem::current_path()};
        options.offload.window = 2;
        EXPECT_EQ(Train(world, dtype, options), expected);
      }
    }
  }
}

// The first unit is there long before the last one is updated.
TEST(OverlapNextForward, StepReturnsBeforeItsUpdates) {
  EngineOptions options = Options(1, true);
  options.offload.nvme_paths = {std::filesystem::current_path()};
  options.offload.read_rate = options.offload.write_rate = 1e6;  // 10 records of 4 KiB and more
  options.offload.window = 1;
  Trainer trainer(options, SelfCommunicator(), TensorsInUnits({512, 5 * 512}), Constant(1.0f));
  auto since = [begin = std::chrono::steady_clock::now()]() mutable {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(begin, now)).count();
  };
  trainer.Step(Gradients({{1.0f}, {1.0f}}));
  ASSERT_TRUE(trainer.engine().Quiesce().ok());
  trainer.MicroBatch(Gradients({{1.0f}, {1.0f}}));
  since();
  trainer.Step();
  std::vector<float> seen;
  ASSERT_TRUE(trainer.engine().BeginMicroBatch().ok());
  Forward(trainer, 1, seen);
  const double first = since();
  Forward(trainer, 2, seen);
  const double rest = since();
  EXPECT_LT(first, rest) << "the second unit has five times the records of the first";
}

// A disk that fails under the forward pass ends the next step, on all ranks.
TEST(OverlapNextForward, ALateFaultEndsTheNextStep) {
  RunRanks(2, [&](int rank, const Communicator& communicator) {
    EngineOptions options = Options(1, true);
    options.offload.nvme_paths = {std::filesystem::current_path()};
    if (rank == 1) options.offload.faults = "enospc=1,first=40";
    Trainer trainer(options, communicator, Model(DType::kFloat32), Constant(0.0f));
    Status failed;
    for (int step = 0; step < 20 && failed.ok(); ++step) {
      failed = trainer.TryStep(SeededGradient(rank, step)).status();
    }
    EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr("rank 1: ")) << failed;
    EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr("nvme_paths"));
  });
}

// Until then no call tells a state that was not updated, and nobody closes without a word.
TEST(OverlapNextForward, ALateFaultIsToldByReadAndClose) {
  for (const bool reads : {true, false}) {
    RunRanks(2, [&](int rank, const Communicator& communicator) {
      EngineOptions options = Options(1, true);
      options.offload.nvme_paths = {std::filesystem::current_path()};
      options.offload.window = 1;
      Trainer trainer(options, communicator, TensorsInUnits({512, 5 * 512}), Constant(1.0f));
      OffloadOptions failing = options.offload;  // the copies of its 6 or so records, then no more
      failing.faults = "enospc=1,first=10";
      const Status moved = trainer.engine().Move(rank == 1 ? failing : options.offload);
      ASSERT_TRUE(moved.ok()) << moved;
      const GradientFunction ones = Gradients({{1.0f}, {1.0f}});
      EXPECT_TRUE(trainer.Step(ones).applied);
      if (reads) {
        std::vector<float> values(1);
        const Status told = trainer.engine().Read(0, StateKind::kMaster, 0, values);
        EXPECT_THAT(std::string(told.message()), ::testing::HasSubstr("rank 1: ")) << told;
        EXPECT_FALSE(trainer.engine().Step().ok());
      }
      EXPECT_EQ(trainer.engine().Close().ok(), !reads && rank == 0);
    });
  }
}

}  // namespace
}  // namespace zerohold::testing
