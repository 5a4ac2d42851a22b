// What AddUnits holds: counted like that of Create, and nothing is left when engines follow each
// other over the same memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"
#include "zerohold/explain_faults.h"

namespace zerohold::testing {
namespace {

constexpr int64_t kFrameBytes = int64_t{2} << 20;

ModelSpec Unit(const std::string& name, int64_t elems, DType dtype = DType::kFloat32) {
  return {{{name, {elems}, dtype}}, {{"unit_" + name, {name}, {}}}};
}

MemoryStats Created(const EngineOptions& options, const Communicator& ranks, ModelSpec model,
                    const ModelSpec& more) {
  model.parameters.insert(model.parameters.end(), more.parameters.begin(), more.parameters.end());
  model.units.insert(model.units.end(), more.units.begin(), more.units.end());
  auto engine = Engine::Create(options, {ranks}, model.parameters, model.units);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return (*engine)->Memory();
}

TEST(AddUnitsMemory, IsCountedAsIfFromCreate) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.bucket_elems = 1 << 16;
    const ModelSpec small = Unit("a", 100000);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const int64_t elems : {50000, 1500000}) {  // in the frames that are there, and larger
        const ModelSpec later = Unit("b", elems, dtype);
        const MemoryStats expected = Created(options, ranks, small, later);
        Trainer trainer(options, ranks, small, Constant(1));
        ASSERT_TRUE(trainer.AddUnits(later, Constant(1)).ok());
        const MemoryStats memory = trainer.engine().Memory();
        const auto bytes = static_cast<double>(expected.ModelBytes());
        EXPECT_NEAR(static_cast<double>(memory.ModelBytes()), bytes, 0.02 * bytes);
        for (const MemoryKind kind : {MemoryKind::kFrames, MemoryKind::kStaging}) {
          EXPECT_EQ(memory.Bytes(Tier::kHost, kind), expected.Bytes(Tier::kHost, kind));
        }
      }
    }
  });
}

int64_t OpenFiles() {
  return std::ranges::distance(std::filesystem::directory_iterator("/proc/self/fd"));
}
int64_t Threads() {
  return std::ranges::distance(std::filesystem::directory_iterator("/proc/self/task"));
}
int64_t Mappings() {
  std::ifstream maps("/proc/self/maps");
  int64_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.starts_with("7");
  return count;
}

// Twenty times: threads and frames are those of one engine, and the end takes all.
TEST(AddUnitsMemory, NothingIsLeftBehind) {
  const auto run = [](const std::function<void(int64_t threads, int64_t files)>& check) {
    EngineOptions options = OptionsOfStage(3);
    options.update_threads = 2;
    Trainer trainer(options, SelfCommunicator(), Unit("first", 5000), Constant(1));
    trainer.Step([](ParameterId, auto, std::span<float> gradient) { gradient[0] += 1.0f; });
    const MemoryStats before = trainer.engine().Memory();
    const int64_t threads = Threads();
    const int64_t files = OpenFiles();
    for (int i = 0; i < 20; ++i) {
      ASSERT_TRUE(trainer.AddUnits(Unit("late" + std::to_string(i), 5000), Constant(1)).ok());
      trainer.Step([](ParameterId, auto, std::span<float> gradient) { gradient[0] += 1.0f; });
    }
    const MemoryStats after = trainer.engine().Memory();
    EXPECT_EQ(after.ModelBytes(), 21 * before.ModelBytes());
    for (const MemoryKind kind : {MemoryKind::kFrames, MemoryKind::kStaging}) {
      EXPECT_EQ(after.Bytes(Tier::kHost, kind), before.Bytes(Tier::kHost, kind));
    }
    check(threads, files);
  };
  const int64_t threads_before = Threads();
  run([](int64_t, int64_t) {});
  const int64_t files_before = OpenFiles();
  const int64_t mappings_before = Mappings();
  run([](int64_t threads, int64_t files) {
    EXPECT_EQ(Threads(), threads);
    EXPECT_EQ(OpenFiles(), files);
  });
  EXPECT_EQ(Threads(), threads_before);
  EXPECT_EQ(OpenFiles(), files_before);
  EXPECT_LE(Mappings(), mappings_before + 3);  // the allocator's own come and go
}

// Frames that grow with a larger unit, and prefetch along the route that was learned.
TEST(AddUnitsMemory, RoutesAndFramesGoOn) {
  RunRanks(2, [](int, Communicator ranks) {
    ModelSpec model;
    for (const char* name : {"a", "b", "c", "d", "e"}) {
      const ModelSpec unit = Unit(name, 400000);
      model.parameters.push_back(unit.parameters[0]);
      model.units.push_back(unit.units[0]);
    }
    EngineOptions options = OptionsOfStage(3);
    options.max_live_parameters_bytes = 3 * kFrameBytes;
    Trainer trainer(options, ranks, model, Constant(1));
    Engine& engine = trainer.engine();
    const auto step = [&](UnitId units) {
      EXPECT_TRUE(engine.BeginMicroBatch().ok());
      for (UnitId unit = 0; unit < units; ++unit) {
        EXPECT_TRUE(engine.Acquire(unit, AcquireMode::kForward).ok());
        EXPECT_TRUE(engine.Release(unit).ok());
      }
      for (UnitId unit = units - 1; unit >= 0; --unit) {
        trainer.Backward(unit, [](ParameterId, auto, std::span<float> gradient) {
          for (float& value : gradient) value += 1.0f;
        });
      }
      return trainer.Step();
    };
    for (int i = 0; i < 3; ++i) step(5);
    const int64_t changes = step(5).route_changes;
    EXPECT_EQ(engine.Memory().Bytes(Tier::kHost, MemoryKind::kFrames), 5 * kFrameBytes);
    ASSERT_TRUE(trainer.AddUnits(Unit("f", 1000000), Constant(1)).ok());  // two frames
    EXPECT_EQ(engine.Memory().Bytes(Tier::kHost, MemoryKind::kFrames), 7 * kFrameBytes);
    const StepStats first = step(5);  // the same route, all of it expected
    EXPECT_EQ(first.route_changes, changes);
    EXPECT_EQ(first.prefetch_misses, 1);  // the first values of the new unit
    EXPECT_EQ(first.prefetch_hits + first.prefetch_late, 10);
    EXPECT_GT(step(6).route_changes, changes);
  });
}

// One file for all engines in a row, with every step in it.
TEST(AddUnitsMemory, TheTraceIsOne) {
  RunRanks(2, [](int rank, Communicator ranks) {
    EngineOptions options = OptionsOfStage(1);
    options.trace_path = std::filesystem::temp_directory_path() /
                         ("add_units_trace." + std::to_string(rank) + ".json");
    Trainer trainer(options, ranks, Unit("a", 300), Constant(1));
    const GradientFunction one = [](ParameterId, auto, std::span<float> gradient) {
      gradient[0] += 1.0f;
    };
    trainer.Step(one);
    ASSERT_TRUE(trainer.AddUnits(Unit("b", 300), Constant(1)).ok());
    EXPECT_FALSE(std::filesystem::exists(options.trace_path));
    const StepStats stats = trainer.Step(one);
    EXPECT_GT(stats.sent_bytes[static_cast<int>(Traffic::kReduceScatter)], 0);
    ASSERT_TRUE(trainer.engine().Close().ok());
    std::ifstream file(options.trace_path);
    const auto trace = nlohmann::json::parse(file, nullptr, false);
    ASSERT_FALSE(trace.is_discarded());
    int steps = 0;
    for (const auto& event : trace["traceEvents"]) steps += event["name"] == "Step";
    EXPECT_EQ(steps, 2);
    std::filesystem::remove(options.trace_path);
  });
}

using AddUnitsDeathTest = ::testing::Test;

TEST(AddUnitsDeathTest, AReleasedLateUnitIsExplained) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        Trainer trainer(OptionsOfStage(3), SelfCommunicator(), Unit("first", 300), Constant(1));
        if (!trainer.AddUnits(Unit("late", 300), Constant(1)).ok()) _exit(1);
        if (!ExplainFaults().ok()) _exit(1);
        *static_cast<volatile float*>(trainer.engine().Parameter(1).data) = 1.0f;
      },
      "parameter late of unit unit_late is not acquired");
}

}  // namespace
}  // namespace zerohold::testing
