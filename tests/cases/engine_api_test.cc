// Options, the order of calls and their answers, by the ids of the cases.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Text(const Status& status) { return std::string(status.message()); }

struct BadOption {
  const char* field;
  const char* value;
  const char* legal;
  std::function<void(EngineOptions&)> set;
};

std::vector<BadOption> BadOptions() {
  using O = EngineOptions;
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return {
      {"zero_stage", "-1", "0, 1, 2 or 3", [](O& o) { o.zero_stage = -1; }},
      {"zero_stage", "4", "0, 1, 2 or 3", [](O& o) { o.zero_stage = 4; }},
      {"groups", "empty", "at least one", [](O& o) { o.groups.clear(); }},
      {"groups[0].learning_rate", "nan", "0 or more",
       [](O& o) { o.groups[0].learning_rate = kNaN; }},
      {"groups[0].learning_rate", "-1", "0 or more", [](O& o) { o.groups[0].learning_rate = -1; }},
      {"groups[1].learning_rate", "inf", "finite",
       [](O& o) { o.groups.resize(2), o.groups[1].learning_rate = kInfinity; }},
      {"groups[0].beta1", "-0.1", "less than 1", [](O& o) { o.groups[0].beta1 = -0.1; }},
      {"groups[0].beta1", "1", "less than 1", [](O& o) { o.groups[0].beta1 = 1; }},
      {"groups[0].beta2", "1", "less than 1", [](O& o) { o.groups[0].beta2 = 1; }},
      {"groups[0].beta2", "nan", "less than 1", [](O& o) { o.groups[0].beta2 = kNaN; }},
      {"groups[0].epsilon", "-1e-08", "2^-126 or more", [](O& o) { o.groups[0].epsilon = -1e-8; }},
      {"groups[0].weight_decay", "-0.5", "0 or more",
       [](O& o) { o.groups[0].weight_decay = -0.5; }},
      {"clip_grad_norm", "-1", "0 (off) or more", [](O& o) { o.clip_grad_norm = -1; }},
      {"clip_grad_norm", "nan", "0 (off) or more", [](O& o) { o.clip_grad_norm = kNaN; }},
      {"bucket_elems", "0", "1 to", [](O& o) { o.bucket_elems = 0; }},
      {"bucket_elems", "-1", "1 to", [](O& o) { o.bucket_elems = -1; }},
      {"record_elems", "0", "1 to", [](O& o) { o.record_elems = 0; }},
      {"update_threads", "-1", "0 (the cores allowed) to", [](O& o) { o.update_threads = -1; }},
      {"communication_timeout_s", "0", "more than 0", [](O& o) { o.communication_timeout_s = 0; }},
      {"communication_timeout_s", "nan", "more than 0",
       [](O& o) { o.communication_timeout_s = kNaN; }},
      {"schedule.warmup_steps", "-1", "0 or more", [](O& o) { o.schedule.warmup_steps = -1; }},
      {"schedule.total_steps", "5", "more than warmup_steps, which is 5",
       [](O& o) {
         o.schedule = {ScheduleKind::kCosine, 5, 5};
       }},
      {"schedule.final_fraction", "1.5", "0 to 1", [](O& o) { o.schedule.final_fraction = 1.5; }},
      {"schedule.batch_size", "0", "base_batch_size, which is 8",
       [](O& o) { o.schedule.base_batch_size = 8; }},
  };
}

// Each message has field, value and legal range; a rank whose options are right hears of it too.
TEST(ApiCases, API_06) {
  const ModelSpec model = Tensors({10});
  for (const BadOption& bad : BadOptions()) {
    const auto names_all =
        AllOf(HasSubstr(std::string(bad.field) + " is " + bad.value), HasSubstr(bad.legal));
    EngineOptions options;
    bad.set(options);
    EXPECT_EQ(options.Validate().code(), absl::StatusCode::kInvalidArgument) << bad.field;
    EXPECT_THAT(Text(options.Validate()), names_all);
    RunRanks(2, [&](int rank, const Communicator& ranks) {
      const Status status = Engine::Create(rank == 1 ? options : OptionsOfStage(1), {ranks},
                                           model.parameters, model.units)
                                .status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(Text(status), AllOf(HasSubstr("rank 1: "), names_all));
    });
  }
}

// What Create is given besides options; all ranks hear of it.
TEST(ApiCases, API_06_WhatCreateRefuses) {
  EXPECT_EQ(Engine::Create({}, {}, {}, {}).status().code(), absl::StatusCode::kInvalidArgument);
  RunRanks(2, [](int rank, const Communicator& ranks) {
    const auto told = [&](const std::function<void(ModelSpec&)>& change) {
      ModelSpec model = Tensors({10});
      if (rank == 1) change(model);
      return Engine::Create(OptionsOfStage(1), {ranks}, model.parameters, model.units).status();
    };
    EXPECT_THAT(Text(told([](ModelSpec& model) { model.parameters[0].communicator = 1; })),
                HasSubstr("rank 1: parameter \"a\" has communicator 1, but 1 are given; give one"));
    EXPECT_THAT(Text(told([](ModelSpec& model) { model.parameters[0].group = -1; })),
                AllOf(HasSubstr("rank 1: parameter a: group is -1"), HasSubstr("has 1")));
    EXPECT_THAT(Text(told([](ModelSpec& model) { model.parameters[0].norm_weight = 0; })),
                AllOf(HasSubstr("rank 1: parameter a: norm_weight is 0"), HasSubstr("at most 1")));
    EXPECT_THAT(Text(told([](ModelSpec& model) { model.units.clear(); })),
                HasSubstr("\"a\" is in no unit"));
    EXPECT_THAT(Text(told([](ModelSpec& model) {
                  model.units[0].parameters = {"a", "z"};
                })),
                HasSubstr("the unknown parameter \"z\""));
  });
}

// 0 is off.
TEST(ApiCases, API_06_AClipOfZero) {
  RunStages({2}, [](EngineOptions options, int, Communicator ranks) {
    options.clip_grad_norm = 0.0;
    Trainer trainer(options, ranks, Tensors({2}), Constant(1));
    EXPECT_EQ(trainer.Step(Gradients({{3, 4}})).clip_factor, 1.0);
    EXPECT_NEAR(trainer.Read(0, StateKind::kMoment1)[0], 0.3, 1e-6);
  });
}

// The norm is the one before clipping; the factor says what clipping did.
TEST(ApiCases, API_08) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.clip_grad_norm = 1.0;
    Trainer trainer(options, ranks, Tensors({2}), Constant(1));
    const StepStats stats = trainer.Step(Gradients({{3, 4}}));
    EXPECT_NEAR(stats.grad_norm, 5.0, 1e-7);
    EXPECT_NEAR(stats.clip_factor, 0.19999996, 1e-7);
    EXPECT_EQ(trainer.Step(Gradients({{0.3f, 0.4f}})).clip_factor, 1.0);  // below the limit
  });
}

Status Refused(const Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  return status;
}

// Each call out of order is refused by name and changes nothing: the step that follows is the one
// of a trainer without the mistake.
TEST(ApiCases, API_12) {
  RunStages({1, 2, 3}, [](const EngineOptions& options, int, Communicator ranks) {
    const auto gradients = Gradients({{3}, {4}});
    Trainer reference(options, ranks, TensorsInUnits({1, 1}), Constant(1));
    reference.Step(gradients);
    const std::vector<float> expected = reference.ReadStates();
    ASSERT_TRUE(reference.engine().Close().ok());

    Trainer trainer(options, ranks, TensorsInUnits({1, 1}), Constant(1));
    Engine& engine = trainer.engine();
    const auto refused = [&](const Status& status, const char* call, const char* mend) {
      EXPECT_THAT(Text(Refused(status)), AllOf(HasSubstr(call), HasSubstr(mend)));
    };
    refused(engine.Step().status(), "Step", "call BeginMicroBatch");
    refused(engine.Acquire(0, AcquireMode::kBackward), "Acquire(kBackward) of unit unit_a",
            "call BeginMicroBatch");
    refused(engine.Release(0), "unit unit_a", "not acquired");
    refused(engine.GradReady(0), "unit unit_a", "call Acquire(kBackward) first");
    ASSERT_TRUE(engine.BeginMicroBatch().ok());
    refused(engine.BeginMicroBatch(), "BeginMicroBatch", "call Step first");
    refused(engine.GradReady(1), "unit unit_b", "call Acquire(kBackward) first");
    ASSERT_TRUE(engine.Acquire(1, AcquireMode::kForward).ok());
    refused(engine.GradReady(1), "unit unit_b", "call Acquire(kBackward) first");
    ASSERT_TRUE(engine.Release(1).ok());
    refused(engine.Release(1), "unit unit_b", "not acquired");
    trainer.Backward(1, gradients);
    refused(engine.GradReady(1), "unit unit_b", "has reported already");
    refused(engine.Acquire(1, AcquireMode::kBackward), "unit unit_b", "has reported");
    trainer.Backward(0, gradients);
    EXPECT_NEAR(trainer.Step().grad_norm, 5.0, 1e-6);
    EXPECT_EQ(trainer.ReadStates(), expected);
    refused(engine.Step().status(), "Step", "call BeginMicroBatch");  // two steps
    EXPECT_EQ(trainer.ReadStates(), expected);
  });
}

// A backward pass that was begun and not reported: the step is refused on every rank by the unit's
// name, its gradients are gone, and the next step is as if it had not been.
TEST(ApiCases, API_12_AStepWithAnOpenBackwardPass) {
  RunStages({1, 2, 3}, [](const EngineOptions& options, int rank, Communicator ranks) {
    Trainer trainer(options, ranks, TensorsInUnits({1, 1}), Constant(1));
    Engine& engine = trainer.engine();
    ASSERT_TRUE(engine.BeginMicroBatch().ok());
    trainer.Backward(1, Gradients({{}, {100}}));
    const bool forgets = rank == ranks.size() - 1;
    if (forgets) {
      ASSERT_TRUE(engine.Acquire(0, AcquireMode::kBackward).ok());
      trainer.Gradient(0)[0] += 100;
      ASSERT_TRUE(engine.Release(0).ok());
    } else {
      trainer.Backward(0, Gradients({{100}, {}}));
    }
    const std::string who = "rank " + std::to_string(ranks.size() - 1) + ": Step";
    EXPECT_THAT(Text(Refused(engine.Step().status())),
                AllOf(HasSubstr(who), HasSubstr("unit_a"), HasSubstr("GradReady")));
    EXPECT_EQ(trainer.ReadStates(), (std::vector<float>{1, 1, 0, 0, 0, 0}));
    const StepStats stats = trainer.Step(Gradients({{3}, {4}}));
    EXPECT_NEAR(stats.grad_norm, 5.0, 1e-6);
    EXPECT_EQ(stats.step, 1);
  });
}

// The same between two micro-batches: refused at once, and mended by the report.
TEST(ApiCases, API_12_AMicroBatchWithAnOpenBackwardPass) {
  RunStages({1, 2}, [](const EngineOptions& options, int, Communicator ranks) {
    Trainer trainer(options, ranks, TensorsInUnits({1, 1}), Constant(1));
    Engine& engine = trainer.engine();
    ASSERT_TRUE(engine.BeginMicroBatch(1.0, false).ok());
    ASSERT_TRUE(engine.Acquire(0, AcquireMode::kBackward).ok());
    trainer.Gradient(0)[0] += 2;
    EXPECT_THAT(Text(Refused(engine.BeginMicroBatch())), HasSubstr("unit_a"));
    ASSERT_TRUE(engine.GradReady(0).ok());
    ASSERT_TRUE(engine.Release(0).ok());
    trainer.MicroBatch(Gradients({{4}, {8}}));
    EXPECT_NEAR(trainer.Step().grad_norm, 5.0, 1e-6);  // means 3 and 4
  });
}

TEST(ApiCases, API_12_WhatDoesNotExist) {
  RunStages({1, 2}, [](const EngineOptions& options, int, Communicator ranks) {
    Trainer trainer(options, ranks, TensorsInUnits({1, 1}), Constant(1));
    Engine& engine = trainer.engine();
    ASSERT_TRUE(engine.BeginMicroBatch().ok());
    for (const UnitId unit : {-1, 2, std::numeric_limits<int32_t>::max()}) {
      for (const Status& status : {engine.Acquire(unit, AcquireMode::kForward),
                                   engine.Acquire(unit, AcquireMode::kBackward),
                                   engine.GradReady(unit), engine.Release(unit)}) {
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
        EXPECT_THAT(Text(status),
                    AllOf(HasSubstr("unit " + std::to_string(unit)), HasSubstr("there are 2")));
      }
    }
    for (const int group : {-1, 1}) {
      const Status status = engine.SetGroup(group, {});
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(Text(status),
                  AllOf(HasSubstr("group " + std::to_string(group)), HasSubstr("there are 1")));
    }
    EXPECT_EQ(engine.SetGroup(0, {.beta2 = 1.0}).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(engine.FindUnit("unit_c").status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(engine.FindParameter("").status().code(), absl::StatusCode::kNotFound);
    EXPECT_EQ(*engine.FindUnit("unit_b"), 1);
    EXPECT_EQ(engine.BeginMicroBatch(0.5).code(), absl::StatusCode::kInvalidArgument);
    trainer.Backward(0, Gradients({{1}, {}}));
    EXPECT_TRUE(trainer.Step().applied);
  });
}

// A group's decay replaces the default; 0 is a value.
TEST(ApiCases, API_14) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    const GroupOptions defaults = {.learning_rate = 0.01, .weight_decay = 0.1};
    options.groups.assign(3, defaults);
    options.groups[0].weight_decay = 0.0;
    options.groups[2].weight_decay = 0.2;
    ModelSpec model = Tensors({5, 5, 5});
    for (int id = 0; id < 3; ++id) model.parameters[id].group = id;
    Trainer trainer(options, ranks, model, Constant(1));
    trainer.Step(Gradients({{0}, {0}, {0}}));
    for (const float value : trainer.Read(0)) EXPECT_EQ(value, 1.0f);
    for (const float value : trainer.Read(1)) EXPECT_NEAR(value, 0.999, 1e-7);
    for (const float value : trainer.Read(2)) EXPECT_NEAR(value, 0.998, 1e-7);
    const std::vector<float> before = trainer.Read(2);
    ASSERT_TRUE(trainer.engine().SetGroup(2, options.groups[0]).ok());
    trainer.Step(Gradients({{0}, {0}, {0}}));
    EXPECT_EQ(trainer.Read(2), before);
  });
}

// A range that does not fit is refused with the tensor's name and length, on every rank although
// one alone is wrong, and no byte changes.
TEST(ApiCases, API_15) {
  RunStages({1, 2, 3}, [](const EngineOptions& options, int rank, Communicator ranks) {
    Trainer trainer(options, ranks, Tensors({1024, 1000}), Constant(1));
    Engine& engine = trainer.engine();
    const bool wrong = rank == ranks.size() - 1;
    std::vector<float> buffer(2048, -1.0f);
    const std::vector<float> untouched = buffer;
    const std::vector<float> states = trainer.ReadStates();
    const std::span<float> fits(buffer.data(), 1000);
    struct Range {
      int64_t begin, elems;
    };
    for (const auto [begin, elems] : {Range{0, 1001}, Range{1, 1000}, Range{-1, 10}, Range{1001, 0},
                                      Range{int64_t{1} << 62, 1}}) {
      const auto bad = std::span(buffer).first(elems);
      for (const StateKind state : {StateKind::kMaster, StateKind::kMoment1}) {
        for (const Status& status :
             {wrong ? engine.Read(1, state, begin, bad) : engine.Read(1, state, 0, fits),
              wrong ? engine.Write(1, state, begin, bad) : engine.Write(1, state, 0, fits)}) {
          EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
          EXPECT_THAT(Text(status), AllOf(HasSubstr("parameter b has 1000 elements")));
        }
      }
    }
    EXPECT_EQ(engine.Read(wrong ? 2 : 1, StateKind::kMaster, 0, fits).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(engine.Write(1, StateKind::kGradient, 0, fits).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(buffer, untouched);
    EXPECT_EQ(trainer.ReadStates(), states);
  });
}

}  // namespace
}  // namespace zerohold::testing
