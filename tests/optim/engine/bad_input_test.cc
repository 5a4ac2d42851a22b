// Mistakes of a trainer, at every stage: what it is told names the unit or parameter and the limit,
// all ranks are told the same, nothing has changed, and the next step is the one of a trainer
// without the mistake.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <set>
#include <thread>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using Code = absl::StatusCode;

constexpr int64_t kFrame = int64_t{2} << 20;
constexpr int64_t kElems = 4000;  // a frame of its own, however small

std::string Text(const Status& status) { return std::string(status.message()); }

ModelSpec FourUnits() { return TensorsInUnits({kElems, kElems, kElems, 1000}); }

GradientFunction Waves(int rank) {
  return [rank](ParameterId id, std::span<const float> values, std::span<float> out) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] += 0.1f * values[i] + static_cast<float>((i + 3 * id + 5 * rank) % 11) - 5.0f;
    }
  };
}

struct Mistake {
  const char* what;
  int first_stage;  // that has it
  // What the trainer is told, between two steps.
  std::function<Status(Engine&)> make;
  Code code;
  std::vector<const char*> told;
};

// A call in a micro-batch that reports nothing else: the window is dropped, as a refused Step does.
Mistake InAWindow(Mistake mistake) {
  mistake.make = [make = mistake.make](Engine& engine) {
    EXPECT_TRUE(engine.BeginMicroBatch().ok());
    Status status = make(engine);
    EXPECT_EQ(engine.Step().status().code(), Code::kFailedPrecondition);
    return status;
  };
  return mistake;
}

Status AcquireAll(Engine& engine, AcquireMode mode) {
  Status status;
  UnitId unit = 3;
  while (unit >= 0 && (status = engine.Acquire(unit, mode)).ok()) --unit;
  if (mode == AcquireMode::kBackward) {
    for (UnitId acquired = 3; acquired > unit; --acquired) {
      EXPECT_TRUE(engine.GradReady(acquired).ok());
    }
  }
  for (UnitId acquired = 3; acquired > unit; --acquired) {
    EXPECT_TRUE(engine.Release(acquired).ok());
  }
  return status;
}

std::vector<Mistake> WrongCalls() {
  return {
      {"a release without acquire",
       0,
       [](Engine& engine) { return engine.Release(1); },
       Code::kFailedPrecondition,
       {"Release", "unit unit_b", "not acquired"}},
      {"one release too many",
       0,
       [](Engine& engine) {
         EXPECT_TRUE(engine.Acquire(2, AcquireMode::kForward).ok());
         EXPECT_TRUE(engine.Release(2).ok());
         return engine.Release(2);
       },
       Code::kFailedPrecondition,
       {"Release", "unit unit_c", "not acquired"}},
      {"a step without a micro-batch",
       0,
       [](Engine& engine) { return engine.Step().status(); },
       Code::kFailedPrecondition,
       {"Step", "call BeginMicroBatch"}},
      {"a step without gradients",
       0,
       [](Engine& engine) {
         EXPECT_TRUE(engine.BeginMicroBatch().ok());
         return engine.Step().status();
       },
       Code::kFailedPrecondition,
       {"Step", "no rank reported a gradient", "call GradReady"}},
      InAWindow({"a report without acquire",
                 0,
                 [](Engine& engine) { return engine.GradReady(1); },
                 Code::kFailedPrecondition,
                 {"GradReady", "unit unit_b", "Acquire(kBackward)"}}),
      {"a micro-batch too many",
       0,
       [](Engine& engine) {
         EXPECT_TRUE(engine.BeginMicroBatch().ok());
         Status status = engine.BeginMicroBatch();
         EXPECT_FALSE(engine.Step().ok());
         return status;
       },
       Code::kFailedPrecondition,
       {"BeginMicroBatch", "call Step first"}},
      {"more units at a time than the frames hold",
       3,
       [](Engine& engine) { return AcquireAll(engine, AcquireMode::kForward); },
       Code::kResourceExhausted,
       {"Acquire", "unit unit_b", "2097152 bytes", "max_live_parameters_bytes gives 4194304",
        "unit_c, unit_d", "release units"}},
  };
}

// Of calls that are for between steps, or acquires: a disk has the records of a window on their
// way, and what is acquired stays as it is.
std::vector<Mistake> CallsOutOfPlace() {
  return {
      InAWindow({"a kWrite in a micro-batch",
                 0,
                 [](Engine& engine) { return engine.Acquire(1, AcquireMode::kWrite); },
                 Code::kFailedPrecondition,
                 {"Acquire(kWrite)", "unit unit_b", "call Step first"}}),
      InAWindow({"copies adopted in a micro-batch",
                 0,
                 [](Engine& engine) { return engine.AdoptParameters(); },
                 Code::kFailedPrecondition,
                 {"AdoptParameters", "call Step first"}}),
      {"a write to what is acquired",
       0,
       [](Engine& engine) {
         EXPECT_TRUE(engine.Acquire(2, AcquireMode::kEvaluate).ok());
         const std::vector<float> values(5, 3.0f);
         const Status status = engine.Write(2, StateKind::kMaster, 7, values);
         EXPECT_TRUE(engine.Release(2).ok());
         return status;
       },
       Code::kFailedPrecondition,
       {"Write", "parameter c", "unit unit_c is acquired", "Release it first"}},
      {"a micro-batch while a unit is written",
       0,
       [](Engine& engine) {
         EXPECT_TRUE(engine.Acquire(1, AcquireMode::kWrite).ok());
         const Status status = engine.BeginMicroBatch();
         EXPECT_TRUE(engine.Release(1).ok());
         return status;
       },
       Code::kFailedPrecondition,
       {"BeginMicroBatch", "unit unit_b", "Release it first"}},
  };
}

std::vector<Mistake> WrongArguments() {
  const auto set_group = [](int group, const GroupOptions& options) {
    return [=](Engine& engine) { return engine.SetGroup(group, options); };
  };
  return {
      {"a unit that does not exist",
       0,
       [](Engine& engine) { return engine.Acquire(4, AcquireMode::kForward); },
       Code::kInvalidArgument,
       {"Acquire", "unit 4", "there are 4"}},
      {"a group that does not exist",
       0,
       set_group(2, {}),
       Code::kInvalidArgument,
       {"SetGroup", "group 2", "there are 1"}},
      {"a beta1 out of range",
       0,
       set_group(0, {.beta1 = 1.0}),
       Code::kInvalidArgument,
       {"beta1 is 1", "less than 1"}},
      {"a beta2 out of range",
       0,
       set_group(0, {.beta2 = -0.5}),
       Code::kInvalidArgument,
       {"beta2 is -0.5", "less than 1"}},
      {"a setting that the rule does not have",
       0,
       set_group(0, {.momentum = 0.9}),
       Code::kInvalidArgument,
       {"momentum is 0.9", "AdamW", "it reads", "leave it at 0"}},
  };
}

// Nothing of the mistakes is left in the engine: it is told the same on every rank, and goes on.
TEST(BadInput, NothingHasChanged) {
  for (const int world : {1, 2, 3}) {
    for (const int stage : {0, 1, 2, 3}) {
      EngineOptions options = OptionsOfStage(stage);
      options.max_micro_batches = 1;
      options.max_live_parameters_bytes = 2 * kFrame;
      std::vector<std::vector<std::string>> told(world);
      RunRanks(world, [&](int rank, const Communicator& ranks) {
        SCOPED_TRACE("world " + std::to_string(world) + ", stage " + std::to_string(stage) +
                     ", rank " + std::to_string(rank));
        const ModelSpec model = FourUnits();
        Trainer right(options, ranks, model, Constant(1));
        right.Step(Waves(rank));
        const std::vector<float> first = right.ReadStates();
        right.Step(Waves(rank));
        const std::vector<float> second = right.ReadStates();
        EXPECT_TRUE(right.engine().Close().ok());

        Trainer trainer(options, ranks, model, Constant(1));
        trainer.Step(Waves(rank));
        for (const std::vector<Mistake>& mistakes :
             {WrongCalls(), CallsOutOfPlace(), WrongArguments()}) {
          for (const Mistake& mistake : mistakes) {
            if (stage < mistake.first_stage) continue;
            SCOPED_TRACE(mistake.what);
            const Status status = mistake.make(trainer.engine());
            EXPECT_EQ(status.code(), mistake.code) << status;
            for (const char* text : mistake.told) EXPECT_THAT(Text(status), HasSubstr(text));
            told[rank].push_back(status.ToString());
          }
        }
        EXPECT_EQ(trainer.ReadStates(), first);
        EXPECT_EQ(trainer.Step(Waves(rank)).step, 2);
        EXPECT_EQ(trainer.ReadStates(), second);
      });
      EXPECT_THAT(std::set(told.begin(), told.end()), SizeIs(1));
    }
  }
}

// In the middle of a window, whose gradients stay what they are.
TEST(BadInput, AWindowGoesOn) {
  RunStages({1, 2, 3}, [](EngineOptions options, int rank, Communicator ranks) {
    options.max_micro_batches = 1;
    const ModelSpec model = FourUnits();
    Trainer right(options, ranks, model, Constant(1));
    right.Step(Waves(rank));
    const std::vector<float> expected = right.ReadStates();
    EXPECT_TRUE(right.engine().Close().ok());

    Trainer trainer(options, ranks, model, Constant(1));
    Engine& engine = trainer.engine();
    const auto refused = [](const Status& status, const char* unit, const char* why) {
      EXPECT_EQ(status.code(), Code::kFailedPrecondition) << status;
      EXPECT_THAT(Text(status), AllOf(HasSubstr(unit), HasSubstr(why)));
    };
    ASSERT_TRUE(engine.BeginMicroBatch().ok());
    for (UnitId unit = 3; unit >= 0; --unit) {
      trainer.Backward(unit, Waves(rank));
      const std::string name = std::string("unit unit_") + "abcd"[unit];
      refused(engine.GradReady(unit), name.c_str(), "has reported already");
      refused(engine.GradAbsent(unit), name.c_str(), "has reported already");
      refused(engine.Acquire(unit, AcquireMode::kBackward), name.c_str(), "has reported");
      refused(engine.Release(unit), name.c_str(), "not acquired");
    }
    EXPECT_TRUE(trainer.Step().applied);
    EXPECT_EQ(trainer.ReadStates(), expected);
  });
}

TEST(BadInput, AMomentThatTheRuleHasNot) {
  const std::pair<UpdateRule, StateKind> pairs[] = {{UpdateRule::kSgd, StateKind::kMoment2},
                                                    {UpdateRule::kLion, StateKind::kMoment2},
                                                    {UpdateRule::kAdagrad, StateKind::kMoment1}};
  for (const auto& [rule, state] : pairs) {
    RunStages({1, 2}, [&](EngineOptions options, int, Communicator ranks) {
      options.rule = rule;
      Trainer trainer(options, ranks, FourUnits(), Constant(1));
      std::vector<float> values(5);
      for (const Status& status : {trainer.engine().Read(1, state, 0, values),
                                   trainer.engine().Write(1, state, 0, values)}) {
        EXPECT_EQ(status.code(), Code::kFailedPrecondition);
        EXPECT_THAT(Text(status),
                    AllOf(HasSubstr("parameter b has no moment"), HasSubstr("the rule")));
      }
      EXPECT_TRUE(trainer.Step(Gradients({{1}, {1}, {1}, {1}})).applied);
    });
  }
}

// A unit larger than the frames is found by Create, on one rank's word for all, and more room
// mends it.
TEST(BadInput, AUnitLargerThanTheFrames) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    ModelSpec model = FourUnits();
    model.parameters[2].shape = {kFrame / 4 + 1};
    const auto create = [&] {
      return Engine::Create(options, {ranks}, model.parameters, model.units).status();
    };
    const auto refused = [&](int first_stage, const char* option) {
      const Status status = create();
      if (options.zero_stage < first_stage) {
        EXPECT_TRUE(status.ok()) << status;
        return;
      }
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << status;
      EXPECT_THAT(Text(status),
                  AllOf(HasSubstr(std::string(option) + " is 4194303"), HasSubstr("unit unit_c"),
                        HasSubstr("needs 4194304 bytes"), HasSubstr("give at least that")));
    };
    options.max_live_parameters_bytes = 2 * kFrame - 1;
    refused(3, "max_live_parameters_bytes");
    options.max_live_parameters_bytes = 2 * kFrame;
    options.max_live_gradients_bytes = 2 * kFrame - 1;
    refused(2, "max_live_gradients_bytes");
    options.max_live_gradients_bytes = 2 * kFrame;
    EXPECT_TRUE(create().ok());
  });
}

// The unit that needs most is named, so that one more try is enough.
TEST(BadInput, TheLargestOfTheUnitsThatDoNotFit) {
  EngineOptions options = OptionsOfStage(3);
  options.max_live_parameters_bytes = 1024;
  ModelSpec model = FourUnits();
  model.parameters[2].shape = {kFrame / 4 + 1};
  const auto create = [&] {
    return Engine::Create(options, {SelfCommunicator()}, model.parameters, model.units).status();
  };
  EXPECT_THAT(Text(create()), HasSubstr("is 1024, but unit unit_c needs 4194304 bytes"));
  options.max_live_parameters_bytes = 2 * kFrame;
  EXPECT_TRUE(create().ok());
}

// Values outside an enum, as a C or Python caller may give them; and a second moment of no update.
TEST(BadInput, WhatNoStateCanBe) {
  RunStages({1, 2}, [](const EngineOptions& options, int, Communicator ranks) {
    Trainer trainer(options, ranks, FourUnits(), Constant(1.0f));
    trainer.Step(Gradients({{1.0f}, {1.0f}, {1.0f}, {1.0f}}));
    const std::vector<float> before = trainer.ReadStates();
    Engine& engine = trainer.engine();
    std::vector<float> values = {1.0f, -1.0f};
    for (const Status& status :
         {engine.Read(0, StateKind{9}, 0, values), engine.Write(0, StateKind{9}, 0, values)}) {
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_THAT(Text(status), HasSubstr("state is 9; give kMaster (0), kMoment1 (1), "));
    }
    EXPECT_EQ(engine.Acquire(0, AcquireMode{9}).code(), Code::kInvalidArgument);
    for (const float bad : {-1.0f, std::nanf("")}) {
      values[1] = bad;
      const Status status = engine.Write(0, StateKind::kMoment2, 7, values);
      EXPECT_EQ(status.code(), Code::kInvalidArgument);
      EXPECT_THAT(Text(status), AllOf(HasSubstr("parameter a: moment2 is "),
                                      HasSubstr("at element 8; give 0 or more")));
    }
    EXPECT_EQ(trainer.ReadStates(), before);
  });
}

// Sums of one rank take their time: its Read, which is refused, comes behind the same reductions as
// the others'.
TEST(BadInput, ReadInAWindowIsRefusedWhateverIsUnderWay) {
  RunStages({2}, [](EngineOptions options, int rank, Communicator ranks) {
    ModelSpec model = Tensors({1 << 21});
    model.parameters[0].dtype = DType::kBFloat16;
    Trainer trainer(options, ranks, model, Constant(1.0f));
    trainer.MicroBatch(Waves(rank));
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    std::vector<float> values(1);
    const Status refused = trainer.engine().Read(0, StateKind::kMaster, 0, values);
    EXPECT_EQ(refused.code(), Code::kFailedPrecondition) << refused;
    EXPECT_TRUE(trainer.Step().applied);
  });
}

}  // namespace
}  // namespace zerohold::testing
