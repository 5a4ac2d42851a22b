// AddUnits that is refused: one status on all ranks, and nothing has changed; and what ranks have
// not agreed on yet, which outlives it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Text(const Status& status) { return std::string(status.message()); }

const GradientFunction kGradient = Gradients({{0.5f}, {-0.25f}, {0.125f}});

struct Given {
  ModelSpec model;
  std::vector<GroupOptions> groups = {};
};

Given Good() { return {{{{"late", {3000}}}, {{"later", {"late"}, {}}}}}; }

std::vector<float> TwoCleanSteps(const EngineOptions& options, const Communicator& ranks) {
  Trainer trainer(options, ranks, TensorsInUnits({300, 10}), Constant(1));
  trainer.Step(kGradient);
  trainer.Step(kGradient);
  return trainer.ReadStates();
}

struct Mistake {
  absl::StatusCode code;
  const char* text;
  std::function<void(Given&)> make;
};

std::vector<Mistake> Mistakes() {
  const auto parameter = [](Given& given) -> ParameterSpec& { return given.model.parameters[0]; };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  return {
      {kInvalid, "parameter \"a\" is listed twice",
       [=](Given& g) { parameter(g).name = g.model.units[0].parameters[0] = "a"; }},
      {kInvalid, "unit \"unit_b\" is listed twice",
       [](Given& g) { g.model.units[0].name = "unit_b"; }},
      {kInvalid, "let one of them use it",
       [](Given& g) { g.model.units[0].parameters.push_back("a"); }},
      {kInvalid, "uses the unknown parameter \"x\"",
       [](Given& g) { g.model.units[0].uses = {"x"}; }},
      {kInvalid, "parameter \"late\" is in no unit",
       [](Given& g) { g.model.units[0].parameters.clear(); }},
      {kInvalid, "parameter late: group is 1, but options.groups has 1",
       [=](Given& g) { parameter(g).group = 1; }},
      {kInvalid, "norm_weight", [=](Given& g) { parameter(g).norm_weight = 2.0; }},
      {kInvalid, "learning_rate", [](Given& g) { g.groups = {{.learning_rate = -1.0}}; }},
      {absl::StatusCode::kResourceExhausted, "asked",
       [=](Given& g) { parameter(g).shape = {int64_t{1} << 40}; }},
  };
}

// The ranks bring the text as an error, and each finds the first's.
void ExpectSame(Communicator ranks, const Status& status) {
  EXPECT_EQ(Text(ranks.Agree(absl::UnknownError(Text(status)))), "rank 0: " + Text(status));
}

void ExpectRefused(Trainer& trainer, Communicator ranks, const Given& given,
                   const Mistake& mistake) {
  const int64_t elems = trainer.engine().TotalElements();
  const MemoryStats memory = trainer.engine().Memory();
  const Status status = trainer.AddUnits(given.model, Constant(1), given.groups);
  EXPECT_EQ(status.code(), mistake.code) << status;
  EXPECT_THAT(Text(status), HasSubstr(mistake.text));
  ExpectSame(ranks, status);
  EXPECT_EQ(trainer.engine().TotalElements(), elems);
  EXPECT_EQ(trainer.engine().Memory().bytes, memory.bytes);
  EXPECT_FALSE(trainer.engine().FindUnit("later").ok());
}

// Made by all ranks, or by the last alone; then the same steps give the same bits, and the good
// ones are taken.
TEST(AddUnitsRefusals, OfBadInput) {
  RunStages({1, 3}, [](EngineOptions options, int rank, Communicator ranks) {
    options.bucket_elems = options.record_elems = int64_t{1} << 30;  // few pieces of a large model
    const std::vector<float> expected = TwoCleanSteps(options, ranks);
    Trainer trainer(options, ranks, TensorsInUnits({300, 10}), Constant(1));
    trainer.Step(kGradient);
    for (const Mistake& mistake : Mistakes()) {
      SCOPED_TRACE(mistake.text);
      Given given = Good();
      mistake.make(given);
      ExpectRefused(trainer, ranks, given, mistake);
      // Of a size that differs the ranks are told that it does.
      if (ranks.size() == 1 || mistake.code != absl::StatusCode::kInvalidArgument) continue;
      ExpectRefused(trainer, ranks, rank == ranks.size() - 1 ? given : Good(), mistake);
    }
    trainer.Step(kGradient);
    EXPECT_EQ(trainer.ReadStates(), expected);
    EXPECT_TRUE(trainer.AddUnits(Good().model, Constant(1)).ok());
    EXPECT_EQ(trainer.Step(kGradient).step, 3);
  });
}

TEST(AddUnitsRefusals, OfAUnitLargerThanTheFrames) {
  RunStages({2}, [](EngineOptions options, int, Communicator ranks) {
    options.max_live_parameters_bytes = options.max_live_gradients_bytes = int64_t{4} << 20;
    Trainer trainer(options, ranks, TensorsInUnits({300, 10}), Constant(1));
    Given given = Good();
    given.model.parameters[0].shape = {(3 << 20) / 2};
    if (options.zero_stage < 2) {
      EXPECT_TRUE(trainer.AddUnits(given.model, Constant(1)).ok());
    } else {
      ExpectRefused(trainer, ranks, given,
                    {absl::StatusCode::kInvalidArgument, "unit later needs 6291456 bytes", {}});
    }
    EXPECT_TRUE(trainer.Step(kGradient).applied);
  });
}

TEST(AddUnitsRefusals, OfRanksThatDiffer) {
  RunStages({2, 3}, [](const EngineOptions& options, int rank, Communicator ranks) {
    const std::vector<float> expected = TwoCleanSteps(options, ranks);
    Trainer trainer(options, ranks, TensorsInUnits({300, 10}), Constant(1));
    trainer.Step(kGradient);
    using Change = std::function<void(Given&)>;
    const std::vector<std::pair<const char*, Change>> changes = {
        {"\"late\" [3000]", [](Given& g) { g.model.parameters[0].shape = {3001}; }},
        {"frozen", [](Given& g) { g.model.parameters[0].frozen = true; }},
        {"uses \"a\"", [](Given& g) { g.model.units[0].uses = {"a"}; }},
        {"learning_rate: 0.5", [](Given& g) { g.groups = {{.learning_rate = 0.5}}; }},
        {"has nothing", [](Given& g) { g.model = {}; }}};
    for (const auto& [text, change] : changes) {
      Given given = Good();
      if (rank == 1) change(given);
      const Status status = trainer.AddUnits(given.model, Constant(1), given.groups);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(Text(status), AllOf(HasSubstr("added parameters"), HasSubstr("rank 0 has"),
                                      HasSubstr("rank 1 has"), HasSubstr(text)));
      ExpectSame(ranks, status);
    }
    trainer.Step(kGradient);
    EXPECT_EQ(trainer.ReadStates(), expected);
  });
}

TEST(AddUnitsRefusals, InsideAWindow) {
  RunStages({1, 2}, [](const EngineOptions& options, int rank, Communicator ranks) {
    const std::vector<float> expected = TwoCleanSteps(options, ranks);
    Trainer trainer(options, ranks, TensorsInUnits({300, 10}), Constant(1));
    trainer.Step(kGradient);
    const Mistake mistake = {absl::StatusCode::kFailedPrecondition, "a micro-batch is open", {}};
    // One rank alone has opened it, then all, and units have reported.
    const bool last = rank == ranks.size() - 1;
    if (last) {
      ASSERT_TRUE(trainer.engine().BeginMicroBatch().ok());
    }
    ExpectRefused(trainer, ranks, Good(), mistake);
    if (!last) {
      ASSERT_TRUE(trainer.engine().BeginMicroBatch().ok());
    }
    trainer.Backward(1, kGradient);
    ExpectRefused(trainer, ranks, Good(), mistake);
    trainer.Backward(0, kGradient);
    ExpectRefused(trainer, ranks, Good(), mistake);
    trainer.Step();
    EXPECT_EQ(trainer.ReadStates(), expected);
    EXPECT_TRUE(trainer.AddUnits(Good().model, Constant(1)).ok());
  });
}

TEST(AddUnitsRefusals, OfAnAcquiredUnit) {
  RunStages({1, 2}, [](const EngineOptions& options, int, Communicator ranks) {
    Trainer trainer(options, ranks, TensorsInUnits({300, 10}), Constant(1));
    for (const AcquireMode mode :
         {AcquireMode::kForward, AcquireMode::kEvaluate, AcquireMode::kWrite}) {
      ASSERT_TRUE(trainer.engine().Acquire(1, mode).ok());
      ExpectRefused(trainer, ranks, Good(),
                    {absl::StatusCode::kFailedPrecondition, "unit unit_b is still acquired", {}});
      EXPECT_EQ(trainer.Values(1)[0], 1.0f);  // and it still is
      ASSERT_TRUE(trainer.engine().Release(1).ok());
    }
    EXPECT_TRUE(trainer.AddUnits(Good().model, Constant(1)).ok());
  });
}

TEST(AddUnitsRefusals, OfACopyThatHasChanged) {
  RunStages({1, 2}, [](const EngineOptions& options, int rank, Communicator ranks) {
    Trainer trainer(options, ranks, TensorsInUnits({300, 10}), Constant(1));
    ASSERT_TRUE(trainer.engine().Acquire(0, AcquireMode::kForward).ok());
    if (rank == 0) trainer.Values(0)[0] = 7.0f;
    ASSERT_TRUE(trainer.engine().Release(0).ok());
    ExpectRefused(trainer, ranks, Good(),
                  {absl::StatusCode::kFailedPrecondition, "parameter a", {}});
    EXPECT_FALSE(trainer.TryStep(kGradient).ok());  // as it would have
    if (options.zero_stage < 3) {
      trainer.WriteUnit(0, Constant(1));
    }
    EXPECT_TRUE(trainer.AddUnits(Good().model, Constant(1)).ok());
    EXPECT_TRUE(trainer.Step(kGradient).applied);
  });
}

TEST(AddUnitsRefusals, AfterClose) {
  RunStages({2}, [](const EngineOptions& options, int, Communicator ranks) {
    Trainer trainer(options, ranks, Tensors({30}), Constant(1));
    ASSERT_TRUE(trainer.engine().Close().ok());
    const Status status = trainer.AddUnits(Good().model, Constant(1));
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Text(status), HasSubstr("closed"));
  });
}

// A rank that is gone: the others are told, and the engine has failed for good.
TEST(AddUnitsRefusals, ALostRankFailsTheEngine) {
  for (const int stage : {0, 3}) {
    RunRanks(2, [&](int rank, Communicator ranks) {
      EngineOptions options = OptionsOfStage(stage);
      options.communication_timeout_s = 0.5;
      Trainer trainer(options, ranks, Tensors({30}), Constant(1));
      if (rank == 1) return;
      const Status status = trainer.AddUnits(Good().model, Constant(1));
      EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsAborted(status)) << status;
      EXPECT_EQ(trainer.engine().BeginMicroBatch(), status);
      EXPECT_EQ(trainer.AddUnits(Good().model, Constant(1)), status);
    });
  }
}

// What one rank wrote or set otherwise is found by the next step, which names it, as without
// AddUnits.
TEST(AddUnitsRefusals, WhatIsNotAgreedYetOutlivesIt) {
  RunStages({2, 3}, [](const EngineOptions& options, int rank, Communicator ranks) {
    Trainer trainer(options, ranks, TensorsInUnits({300, 10}), Constant(1));
    trainer.Step(kGradient);
    trainer.WriteUnit(1, Constant(rank == 1 ? 1.5f : 1.0f));
    ASSERT_TRUE(trainer.AddUnits(Good().model, Constant(1)).ok());
    EXPECT_THAT(Text(trainer.TryStep(kGradient).status()),
                HasSubstr("values written to unit unit_b"));
    trainer.WriteUnit(1, Constant(1));
    EXPECT_EQ(trainer.Step(kGradient).step, 2);
    if (rank == 1) {
      ASSERT_TRUE(trainer.engine().SetGroup(0, {.learning_rate = 0.75}).ok());
    }
    ASSERT_TRUE(trainer.engine().AddUnits({}, {}).ok());
    EXPECT_THAT(Text(trainer.TryStep(kGradient).status()), HasSubstr("learning_rate: 0.75"));
  });
}

}  // namespace
}  // namespace zerohold::testing
