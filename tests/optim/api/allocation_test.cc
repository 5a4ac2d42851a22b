// Nothing is allocated per step once it is warm: not on the engine's threads, and not in the calls.
//
// This program replaces operator new with one that counts by thread; the shared library's calls
// come here too, which WhatTheLibraryAllocatesIsCounted shows.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace {

thread_local bool of_the_test = false;  // set on the threads that play trainers
std::atomic<int64_t> calls_of_engine{0};
std::atomic<int64_t> calls_of_test{0};

void* Allocate(size_t bytes, size_t alignment) {
  ++(of_the_test ? calls_of_test : calls_of_engine);
  // aligned_alloc wants a multiple of the alignment.
  const size_t rounded = (bytes + alignment) / alignment * alignment;
  if (void* memory = std::aligned_alloc(alignment, rounded)) return memory;
  throw std::bad_alloc();
}

}  // namespace

// The other forms, for arrays too, end here by the standard's rules.
void* operator new(size_t bytes) { return Allocate(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) {
  return Allocate(bytes, static_cast<size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }

namespace zerohold::testing {
namespace {

constexpr int kUnits = 4;

ModelSpec Model() {
  ModelSpec model = TensorsInUnits({700, 5000, 300, 1200});
  model.units[3].uses = {"a"};
  return model;
}

// One step of `micro_batches`, without an allocation of its own.
void TrainStep(Engine& engine, int micro_batches) {
  for (int batch = 0; batch < micro_batches; ++batch) {
    ASSERT_TRUE(engine.BeginMicroBatch(1.0, batch + 1 == micro_batches).ok());
    for (UnitId unit = 0; unit < kUnits; ++unit) {
      ASSERT_TRUE(engine.Acquire(unit, AcquireMode::kForward).ok());
      ASSERT_TRUE(engine.Release(unit).ok());
    }
    for (UnitId unit = kUnits - 1; unit >= 0; --unit) {
      ASSERT_TRUE(engine.Acquire(unit, AcquireMode::kBackward).ok());
      const TensorView gradient = engine.Gradient(unit);
      for (int64_t i = 0; i < gradient.elems; ++i) static_cast<float*>(gradient.data)[i] += 1.0f;
      ASSERT_TRUE(engine.GradReady(unit).ok());
      ASSERT_TRUE(engine.Release(unit).ok());
    }
  }
  ASSERT_TRUE(engine.SetGroup(0, {.learning_rate = 0.01}).ok());
  const StatusOr<StepStats> stats = engine.Step();
  ASSERT_TRUE(stats.ok());
  ASSERT_TRUE(stats->applied);
  ASSERT_TRUE(engine.Quiesce().ok());
}

void TrainWithoutAllocation(const EngineOptions& options, Communicator ranks) {
  of_the_test = true;
  const ModelSpec model = Model();
  auto engine = Engine::Create(options, {ranks}, model.parameters, model.units);
  ASSERT_TRUE(engine.ok()) << engine.status();
  for (int step = 1; step <= 2; ++step) TrainStep(**engine, 3);
  // All ranks are warm, and none goes on while another still looks at the counters.
  ASSERT_TRUE(ranks.Agree(absl::OkStatus()).ok());
  const int64_t engine_before = calls_of_engine;
  const int64_t test_before = calls_of_test;
  ASSERT_TRUE(ranks.Agree(absl::OkStatus()).ok());
  for (int step = 3; step <= 10; ++step) TrainStep(**engine, 3);
  ASSERT_TRUE(ranks.Agree(absl::OkStatus()).ok());
  EXPECT_EQ(calls_of_engine - engine_before, 0);
  EXPECT_EQ(calls_of_test - test_before, 0);
  ASSERT_TRUE(ranks.Agree(absl::OkStatus()).ok());
  EXPECT_TRUE((*engine)->Close().ok());
}

EngineOptions Options(int stage, bool check_order) {
  EngineOptions options = OptionsOfStage(stage);
  options.bucket_elems = 512;
  options.record_elems = 1024;
  options.clip_grad_norm = 1.0;
  options.update_threads = 2;
  options.check_collective_order = check_order;
  return options;
}

TEST(Allocation, WhatTheLibraryAllocatesIsCounted) {
  of_the_test = true;
  const ModelSpec model = Model();
  const int64_t test_before = calls_of_test;
  auto engine =
      Engine::Create(OptionsOfStage(1), {SelfCommunicator()}, model.parameters, model.units);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_GT(calls_of_test - test_before, 10);
  // The text of a refusal is made by the engine thread.
  const int64_t engine_before = calls_of_engine;
  EXPECT_FALSE((*engine)->Release(0).ok());
  EXPECT_GT(calls_of_engine - engine_before, 0);
}

TEST(Allocation, NoneInAWarmStepAlone) {
  for (const int stage : {0, 1}) {
    TrainWithoutAllocation(Options(stage, false), SelfCommunicator());
  }
}

TEST(Allocation, NoneInAWarmStepOfSeveralRanks) {
  for (const bool check_order : {false, true}) {
    for (const int stage : {0, 1}) {
      for (const int world : {2, 3}) {
        RunRanks(world, [&](int, const Communicator& ranks) {
          SCOPED_TRACE("stage " + std::to_string(stage) + " check " + std::to_string(check_order));
          TrainWithoutAllocation(Options(stage, check_order), ranks);
        });
      }
    }
  }
}

}  // namespace
}  // namespace zerohold::testing
