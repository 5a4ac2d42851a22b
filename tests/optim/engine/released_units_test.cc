// What is not acquired cannot be touched: the addresses of released units fault at once, and the
// fault says what to call.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <memory>

#include "tests/src/memory/pages.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer.h"
#include "zerohold/explain_faults.h"

namespace zerohold::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::KilledBySignal;

constexpr int kUnits = 5;
constexpr int64_t kElems = 700'000;  // two frames of 2 MiB

ModelSpec LargeUnits() { return TensorsInUnits(std::vector<int64_t>(kUnits, kElems)); }

// Of those of a view; 0 where a touch faults.
int64_t PagesThere(const TensorView& view) {
  char* const begin = static_cast<char*>(view.data);
  const auto misfit = static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin) % base::kPageBytes);
  const int64_t bytes = view.elems * SizeOf(view.dtype);
  return memory::PresentPages(begin - misfit, misfit + bytes);
}

void ExpectThere(const TensorView& view, bool there) {
  const int64_t bytes = view.elems * SizeOf(view.dtype);
  EXPECT_EQ(PagesThere(view) > 0, there);
  EXPECT_TRUE(!there || PagesThere(view) >= bytes / base::kPageBytes);
  const char* const begin = static_cast<const char*>(view.data);
  for (const int64_t at : {int64_t{0}, bytes / 2, bytes - 1}) {
    EXPECT_EQ(memory::Faults(begin + at, 1), !there) << at;
  }
}

// On every rank, at every moment of a step, exactly what is acquired is there; also while the route
// brings others into the frames ahead.
void CheckAStep(Trainer& trainer, int stage) {
  Engine& engine = trainer.engine();
  const auto check = [&](UnitId acquired, UnitId with_gradient) {
    for (UnitId unit = 0; unit < kUnits; ++unit) {
      SCOPED_TRACE("unit " + std::to_string(unit) + " when " + std::to_string(acquired) + " is");
      ExpectThere(engine.Parameter(unit), stage < 3 || unit == acquired);
      ExpectThere(engine.Gradient(unit), stage < 2 || unit == with_gradient);
    }
  };
  ASSERT_TRUE(engine.BeginMicroBatch().ok());
  for (UnitId unit = 0; unit < kUnits; ++unit) {
    ASSERT_TRUE(engine.Acquire(unit, AcquireMode::kForward).ok());
    check(unit, -1);
    ASSERT_TRUE(engine.Release(unit).ok());
  }
  check(-1, -1);
  for (UnitId unit = kUnits - 1; unit >= 0; --unit) {
    ASSERT_TRUE(engine.Acquire(unit, AcquireMode::kBackward).ok());
    check(unit, unit);
    ASSERT_TRUE(engine.GradReady(unit).ok());
    check(unit, -1);
    ASSERT_TRUE(engine.Release(unit).ok());
  }
  EXPECT_TRUE(trainer.Step().applied);
  check(-1, -1);
}

TEST(ReleasedUnits, ExactlyWhatIsAcquiredIsThere) {
  RunStages({1, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.max_micro_batches = 1;
    Trainer trainer(options, ranks, LargeUnits(), Constant(1));
    for (int step = 0; step < 3; ++step) CheckAStep(trainer, options.zero_stage);
  });
}

// Acquires nest: what is acquired twice is there until the second release.
TEST(ReleasedUnits, AcquiresNest) {
  RunStages({1, 2}, [](const EngineOptions& options, int, Communicator ranks) {
    if (options.zero_stage < 3) return;
    Trainer trainer(options, ranks, LargeUnits(), Constant(1));
    Engine& engine = trainer.engine();
    for (const AcquireMode mode : {AcquireMode::kForward, AcquireMode::kEvaluate}) {
      ASSERT_TRUE(engine.Acquire(2, mode).ok());
      ASSERT_TRUE(engine.Acquire(2, mode).ok());
      ASSERT_TRUE(engine.Release(2).ok());
      ExpectThere(engine.Parameter(2), true);
      ASSERT_TRUE(engine.Release(2).ok());
      ExpectThere(engine.Parameter(2), false);
    }
  });
}

// A unit that is still acquired at stage 3 stops the step, whose gradients are gone.
TEST(ReleasedUnits, AForgottenReleaseCostsTheGradients) {
  RunStages({2}, [](const EngineOptions& options, int, Communicator ranks) {
    Trainer trainer(options, ranks, TensorsInUnits({300, 300}), Constant(1.0f));
    Engine& engine = trainer.engine();
    ASSERT_TRUE(engine.BeginMicroBatch().ok());
    ASSERT_TRUE(engine.Acquire(1, AcquireMode::kBackward).ok());
    ASSERT_TRUE(engine.GradReady(1).ok());
    const Status status = engine.Step().status();
    EXPECT_EQ(status.ok(), options.zero_stage < 3) << status;
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()),
                  AllOf(HasSubstr("unit unit_b is still acquired"),
                        HasSubstr("the gradients of this step are gone")));
    }
    EXPECT_TRUE(engine.Release(1).ok());
    EXPECT_TRUE(trainer.Step(Gradients({{1.0f}, {1.0f}})).applied);
  });
}

// Each below runs in a process of its own, started anew: the reporter is for good.
class ReleasedUnitsDeathTest : public ::testing::Test {
 protected:
  ReleasedUnitsDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // An engine alone with units unit_a, unit_b, ... in its second step: the first unit has been
  // acquired and released, so that the route has the second in the frames, and the last one is
  // acquired for backward.
  static Engine& InAStep(int stage, bool explained = true) {
    static std::unique_ptr<Trainer> trainer;
    signal(SIGSEGV, SIG_DFL);  // also where a sanitizer has its own
    if (explained && !ExplainFaults().ok()) _exit(1);
    trainer = std::make_unique<Trainer>(OptionsOfStage(stage), SelfCommunicator(), LargeUnits(),
                                        Constant(1));
    Engine& engine = trainer->engine();
    const auto gradient = [](ParameterId, std::span<const float>, std::span<float>) {};
    const auto forward = [&](UnitId unit) {
      return engine.Acquire(unit, AcquireMode::kForward).ok() && engine.Release(unit).ok();
    };
    if (!engine.BeginMicroBatch().ok()) _exit(1);
    for (UnitId unit = 0; unit < kUnits; ++unit) {
      if (!forward(unit)) _exit(1);
    }
    for (UnitId unit = kUnits - 1; unit >= 0; --unit) trainer->Backward(unit, gradient);
    if (!engine.Step().ok() || !engine.BeginMicroBatch().ok() || !forward(0)) _exit(1);
    if (!engine.Acquire(kUnits - 1, AcquireMode::kBackward).ok()) _exit(1);
    return engine;
  }
  static void Write(const TensorView& view, int64_t elem) {
    static_cast<volatile float*>(view.data)[elem] = 1.0f;
  }
  static void Read(const TensorView& view, int64_t elem) {
    static_cast<void>(static_cast<volatile const float*>(view.data)[elem]);
  }
};

TEST_F(ReleasedUnitsDeathTest, AParameterIsExplained) {
  const char* const line =
      "zerohold: parameter b of unit unit_b is not acquired; call Acquire for it before touching "
      "it";
  const auto touch = [](auto how, int64_t elem) { how(InAStep(3).Parameter(1), elem); };
  EXPECT_EXIT(touch(Read, 0), KilledBySignal(SIGSEGV), line);
  EXPECT_EXIT(touch(Write, kElems - 1), KilledBySignal(SIGSEGV), line);
}

TEST_F(ReleasedUnitsDeathTest, AGradientIsExplained) {
  const char* const line =
      "zerohold: parameter c \\(gradient\\) of unit unit_c is not there; call "
      "Acquire\\(kBackward\\) for it before touching it, and GradReady, with which it goes, after "
      "the last touch";
  const auto touch = [](int stage, auto how, int64_t elem) {
    how(InAStep(stage).Gradient(2), elem);
  };
  EXPECT_EXIT(touch(2, Read, kElems - 1), KilledBySignal(SIGSEGV), line);
  EXPECT_EXIT(touch(3, Write, 0), KilledBySignal(SIGSEGV), line);
}

// What has been reported is the engine's, although its unit is still acquired.
TEST_F(ReleasedUnitsDeathTest, AReportedGradientIsExplained) {
  EXPECT_EXIT(
      {
        Engine& engine = InAStep(2);
        if (!engine.GradReady(kUnits - 1).ok()) _exit(1);
        Write(engine.Gradient(kUnits - 1), 0);
      },
      KilledBySignal(SIGSEGV), "parameter e \\(gradient\\) of unit unit_e is not there; call");
}

// A child has none of its parent's memory, acquired or not.
TEST_F(ReleasedUnitsDeathTest, AChildIsToldWhoseMemoryItIs) {
  EXPECT_EXIT(
      {
        Engine& engine = InAStep(3);
        if (const pid_t child = fork(); child != 0) {
          int status = 0;
          waitpid(child, &status, 0);
          Read(engine.Parameter(kUnits - 1), 0);  // the parent has it still
          _exit(WIFSIGNALED(status) ? WTERMSIG(status) : 0);
        }
        Read(engine.Parameter(kUnits - 1), 0);
      },
      ::testing::ExitedWithCode(SIGSEGV), "parameter e of unit unit_e belongs to process");
}

// Unasked, nothing is said.
TEST_F(ReleasedUnitsDeathTest, FaultsAreNotExplainedUnasked) {
  EXPECT_EXIT(Read(InAStep(3, false).Parameter(1), 0), KilledBySignal(SIGSEGV), "^$");
}

}  // namespace
}  // namespace zerohold::testing
