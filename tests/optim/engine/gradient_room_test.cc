// Gradients of more units than the frames hold: who is refused is told what to do, and loses
// nothing; who is absent is so on every rank.
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>

#include <mutex>

#include "tests/support/ranks.h"
#include "tests/support/seeded.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

constexpr int64_t kFrame = int64_t{2} << 20;
constexpr int64_t kElems = 4000;  // a frame of its own, however small

std::string Text(const Status& status) { return std::string(status.message()); }

ModelSpec FourUnits() { return TensorsInUnits({kElems, kElems, kElems, 1000}); }

// Gradients of more units than the frames hold: the acquire is refused, what was reported is
// reduced, and the refused unit may come when there is room.
TEST(GradientRoom, MoreGradientsThanTheFramesHold) {
  RunStages({1, 2}, [](EngineOptions options, int rank, Communicator ranks) {
    if (options.zero_stage < 2) return;
    options.max_live_parameters_bytes = 4 * kFrame;
    options.max_micro_batches = 1;
    options.max_live_gradients_bytes = 2 * kFrame;
    const ModelSpec model = FourUnits();
    Trainer right(options, ranks, model, Constant(1));
    right.Step(SeededGradient(rank, 0));
    const std::vector<float> expected = right.ReadStates();
    EXPECT_TRUE(right.engine().Close().ok());

    Trainer trainer(options, ranks, model, Constant(1));
    Engine& engine = trainer.engine();
    ASSERT_TRUE(engine.BeginMicroBatch().ok());
    trainer.Backward(3, SeededGradient(rank, 0));
    ASSERT_TRUE(engine.Acquire(2, AcquireMode::kBackward).ok());
    ASSERT_TRUE(engine.Acquire(1, AcquireMode::kBackward).ok());
    const Status status = engine.Acquire(0, AcquireMode::kBackward);
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << status;
    EXPECT_THAT(Text(status), AllOf(HasSubstr("unit unit_a"), HasSubstr("2097152 bytes"),
                                    HasSubstr("max_live_gradients_bytes gives 4194304"),
                                    HasSubstr("call GradReady")));
    for (const UnitId unit : {2, 1}) {
      trainer.Backward(unit, SeededGradient(rank, 0));
      ASSERT_TRUE(engine.Release(unit).ok());
    }
    trainer.Backward(0, SeededGradient(rank, 0));
    EXPECT_TRUE(trainer.Step().applied);
    EXPECT_EQ(trainer.ReadStates(), expected);
  });
}

// No room where a unit waits for others that are acquired, or one of two is there.
TEST(GradientRoom, MoreGradientsThanTheFramesHoldBesideTiedOnes) {
  RunStages({1, 2}, [](EngineOptions options, int rank, Communicator ranks) {
    if (options.zero_stage < 2) return;
    options.max_live_parameters_bytes = 4 * kFrame;
    options.max_live_gradients_bytes = 2 * kFrame;
    ModelSpec model = FourUnits();
    model.units[3].uses = {"c"};
    Trainer trainer(options, ranks, model, Constant(1));
    const auto exhausted = [&](UnitId unit) {
      const Status status = trainer.engine().Acquire(unit, AcquireMode::kBackward);
      EXPECT_EQ(status.code(), Code::kResourceExhausted) << status;
    };
    ASSERT_TRUE(trainer.engine().BeginMicroBatch().ok());
    trainer.Backward(3, SeededGradient(rank, 0));
    ASSERT_TRUE(trainer.engine().Acquire(2, AcquireMode::kBackward).ok());
    trainer.Backward(1, SeededGradient(rank, 0));
    exhausted(0);  // c waits for its own unit, b behind it
    for (const UnitId unit : {2, 0}) trainer.Backward(unit, SeededGradient(rank, 0));
    ASSERT_TRUE(trainer.engine().Release(2).ok());
    EXPECT_TRUE(trainer.Step().applied);

    ASSERT_TRUE(trainer.engine().BeginMicroBatch().ok());
    trainer.Backward(1, SeededGradient(rank, 0));
    exhausted(3);  // b waits for d, which needs a frame for c too
    EXPECT_TRUE(trainer.Step().applied);
  });
}

// What an owner's users have reported is reduced when the others, which nobody has acquired, stand
// before a unit that needs the room; in either direction.
TEST(GradientRoom, TiedUnitsOfWhichOneIsLeftOutMakeRoom) {
  struct Tie {
    UnitId user;
    const char* parameter;
  };
  constexpr UnitId kLeftOut = 2;
  const Tie ties[] = {{3, "c"}, {kLeftOut, "d"}};
  RunStages({1, 2}, [&](EngineOptions options, int rank, Communicator ranks) {
    if (options.zero_stage < 2) return;
    options.max_live_parameters_bytes = 4 * kFrame;
    for (const Tie& tie : ties) {
      SCOPED_TRACE(absl::StrCat(tie.user, " uses ", tie.parameter));
      ModelSpec model = FourUnits();
      model.units[tie.user].uses = {tie.parameter};
      std::vector<float> expected;
      for (const int64_t frames : {4, 2}) {
        options.max_live_gradients_bytes = frames * kFrame;
        Trainer trainer(options, ranks, model, Constant(1));
        for (int step = 0; step < 2; ++step) {
          ASSERT_TRUE(trainer.engine().BeginMicroBatch().ok());
          for (const UnitId unit : {3, 1, 0}) trainer.Backward(unit, SeededGradient(rank, step));
          if (frames == 2) {
            EXPECT_THAT(Text(trainer.TryBackward(kLeftOut, SeededGradient(rank, step))),
                        HasSubstr("counts as absent"));
          }
          EXPECT_TRUE(trainer.Step().applied);
        }
        const std::vector<float> states = trainer.ReadStates();
        if (expected.empty()) expected = states;
        EXPECT_EQ(states, expected);
      }
    }
  });
}

// A unit without gradients of its own, which uses a parameter for whose gradient there is no room,
// gives back no frame.
TEST(GradientRoom, MoreGradientsThanTheFramesHoldForWhatAFrozenUnitUses) {
  RunStages({1, 2}, [](EngineOptions options, int rank, Communicator ranks) {
    if (options.zero_stage < 2) return;
    options.max_live_parameters_bytes = 4 * kFrame;
    options.max_live_gradients_bytes = 2 * kFrame;
    ModelSpec model = FourUnits();
    model.parameters[3].frozen = true;
    model.units[3].uses = {"c"};
    Trainer trainer(options, ranks, model, Constant(1));
    Engine& engine = trainer.engine();
    ASSERT_TRUE(engine.BeginMicroBatch().ok());
    for (const UnitId unit : {1, 0}) {
      ASSERT_TRUE(engine.Acquire(unit, AcquireMode::kBackward).ok());
    }
    const Status status = engine.Acquire(3, AcquireMode::kBackward);
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << status;
    EXPECT_THAT(Text(status), HasSubstr("unit unit_c"));
    for (const UnitId unit : {1, 0}) {
      trainer.Backward(unit, SeededGradient(rank, 0));
      ASSERT_TRUE(engine.Release(unit).ok());
    }
    EXPECT_TRUE(trainer.Step().applied);
  });
}

// A refused acquire makes no unit absent: here what holds the frames is reduced after it.
TEST(GradientRoom, ARefusedAcquireLeavesOtherUnitsTheirTurn) {
  RunStages({1, 2}, [](EngineOptions options, int rank, Communicator ranks) {
    if (options.zero_stage < 2) return;
    options.max_live_parameters_bytes = 4 * kFrame;
    options.max_live_gradients_bytes = 2 * kFrame;
    const ModelSpec model = FourUnits();
    Trainer right(options, ranks, model, Constant(1));
    right.Step(SeededGradient(rank, 0), {0, 1});
    const std::vector<float> expected = right.ReadStates();
    EXPECT_TRUE(right.engine().Close().ok());

    Trainer trainer(options, ranks, model, Constant(1));
    Engine& engine = trainer.engine();
    ASSERT_TRUE(engine.BeginMicroBatch().ok());
    trainer.Backward(0, SeededGradient(rank, 0));
    ASSERT_TRUE(engine.Acquire(1, AcquireMode::kBackward).ok());
    const Status status = engine.Acquire(2, AcquireMode::kBackward);
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << status;
    EXPECT_THAT(Text(status), HasSubstr("reverse order of the list"));
    ASSERT_TRUE(engine.Release(1).ok());
    EXPECT_EQ(engine.Acquire(3, AcquireMode::kBackward).code(), Code::kResourceExhausted);
    trainer.Backward(1, SeededGradient(rank, 0));
    EXPECT_TRUE(trainer.Step().applied);
    EXPECT_EQ(trainer.ReadStates(), expected);
  });
}

// Nor does it make absent what it begins itself: here the second unit uses the last one, and what
// has the room is reduced after both.
TEST(GradientRoom, AUnitThatIsBeingAcquiredIsNotAbsent) {
  RunStages({1, 2}, [](EngineOptions options, int rank, Communicator ranks) {
    if (options.zero_stage < 2) return;
    options.max_live_parameters_bytes = 4 * kFrame;
    options.max_live_gradients_bytes = 2 * kFrame;
    ModelSpec model = FourUnits();
    model.units[1].uses = {"d"};
    Trainer right(options, ranks, model, Constant(1));
    right.Step(SeededGradient(rank, 0), {0});
    const std::vector<float> first = right.ReadStates();
    right.Step(SeededGradient(rank, 1), {1, 2});
    const std::vector<float> second = right.ReadStates();
    EXPECT_TRUE(right.engine().Close().ok());

    Trainer trainer(options, ranks, model, Constant(1));
    ASSERT_TRUE(trainer.engine().BeginMicroBatch().ok());
    trainer.Backward(0, SeededGradient(rank, 0));
    const Status status = trainer.engine().Acquire(1, AcquireMode::kBackward);
    EXPECT_EQ(status.code(), Code::kResourceExhausted) << status;
    EXPECT_TRUE(trainer.Step().applied);
    EXPECT_EQ(trainer.ReadStates(), first);
    EXPECT_TRUE(trainer.Step(SeededGradient(rank, 1), {1, 2}).applied);
    EXPECT_EQ(trainer.ReadStates(), second);
  });
}

// Room for one of two gradients is none.
TEST(GradientRoom, RoomForAPartMakesNothingAbsent) {
  RunStages({1, 2}, [](EngineOptions options, int rank, Communicator ranks) {
    if (options.zero_stage < 2) return;
    options.max_live_parameters_bytes = 6 * kFrame;
    options.max_live_gradients_bytes = 2 * kFrame;
    ModelSpec model = TensorsInUnits(std::vector<int64_t>(6, kElems));
    model.units[3].uses = {"c"};
    Trainer trainer(options, ranks, model, Constant(1));
    Engine& engine = trainer.engine();
    ASSERT_TRUE(engine.BeginMicroBatch().ok());
    ASSERT_TRUE(engine.Acquire(0, AcquireMode::kBackward).ok());
    trainer.Backward(4, SeededGradient(rank, 0));
    for (const UnitId unit : {3, 5}) {
      EXPECT_EQ(engine.Acquire(unit, AcquireMode::kBackward).code(), Code::kResourceExhausted);
    }
    ASSERT_TRUE(engine.GradAbsent(5).ok());  // makes the room that 5 needed no more
    ASSERT_TRUE(engine.Acquire(2, AcquireMode::kBackward).ok());
    for (const UnitId unit : {2, 0}) {
      trainer.Backward(unit, SeededGradient(rank, 0));
      ASSERT_TRUE(engine.Release(unit).ok());
    }
    EXPECT_TRUE(trainer.Step().applied);
  });
}

// What is never reduced never stands before others: it may come whenever it likes.
TEST(GradientRoom, AFrozenUnitDoesNotCountAsAbsent) {
  RunStages({1, 2}, [](EngineOptions options, int rank, Communicator ranks) {
    if (options.zero_stage < 2) return;
    options.max_live_gradients_bytes = kFrame;
    ModelSpec model = FourUnits();
    model.parameters[3].frozen = true;
    Trainer trainer(options, ranks, model, Constant(1));
    ASSERT_TRUE(trainer.engine().BeginMicroBatch().ok());
    trainer.Backward(1, SeededGradient(rank, 0));
    trainer.Backward(0, SeededGradient(rank, 0));  // b makes room, for c counts as absent
    trainer.Backward(3, SeededGradient(rank, 0));
    EXPECT_THAT(Text(trainer.TryBackward(2, SeededGradient(rank, 0))),
                HasSubstr("counts as absent"));
    EXPECT_TRUE(trainer.Step().applied);
  });
}

// Ranks are refused differently, for it depends on what each has reported. That leaves no mark in
// what a rank prefetches, which all must do alike.
TEST(GradientRoom, ARefusalOnOneRankLeavesTheRouteAlone) {
  std::vector<float> expected;
  std::mutex mutex;
  for (const bool refused : {false, true}) {
    RunRanks(2, [&](int rank, const Communicator& ranks) {
      EngineOptions options = OptionsOfStage(3);
      options.max_micro_batches = 1;
      options.max_live_parameters_bytes = options.max_live_gradients_bytes = 2 * kFrame;
      Trainer trainer(options, ranks, TensorsInUnits(std::vector<int64_t>(7, 1000)), Constant(1));
      Engine& engine = trainer.engine();
      const auto absent = [&](UnitId unit) {
        ASSERT_TRUE(engine.Acquire(unit, AcquireMode::kForward).ok());
        ASSERT_TRUE(engine.GradAbsent(unit).ok());
        ASSERT_TRUE(engine.Release(unit).ok());
      };
      for (int step = 0; step < 6; ++step) {
        ASSERT_TRUE(engine.BeginMicroBatch().ok());
        for (UnitId unit = 0; unit < 7; ++unit) {
          ASSERT_TRUE(engine.Acquire(unit, AcquireMode::kForward).ok());
          ASSERT_TRUE(engine.Release(unit).ok());
        }
        std::vector<UnitId> order = {6, 5, 4, 3, 2, 1, 0};
        if (step == 0) order = {5, 3, 6, 4, 2, 1, 0};
        for (const UnitId unit : order) {
          const bool mine = step == 0 && rank == 0 && unit == 6;
          if (mine && refused) {
            EXPECT_EQ(engine.Acquire(6, AcquireMode::kBackward).code(), Code::kResourceExhausted);
          }
          const bool others = step == 0 && rank == 1 && unit == 5;
          if (mine || others) {
            absent(unit);
          } else {
            trainer.Backward(unit, SeededGradient(rank, step));
          }
        }
        EXPECT_TRUE(trainer.Step().applied);
      }
      const std::vector<float> states = trainer.ReadStates();
      const std::lock_guard lock(mutex);
      if (expected.empty()) expected = states;
      EXPECT_EQ(states, expected);
    });
  }
}

}  // namespace
}  // namespace zerohold::testing
