// Ranks that were told different things: every rank gets the same refusal, which names the thing,
// and training goes on when it is mended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Text(const Status& status) { return std::string(status.message()); }

struct Change {
  const char* what;
  const char* of_others;
  const char* of_last;
  std::function<void(EngineOptions&)> set;
};

// The last rank has one option changed.
TEST(Disagreement, OfAnyOption) {
  using O = EngineOptions;
  const std::vector<Change> changes = {
      {"zero_stage", "1", "0", [](O& o) { o.zero_stage = 0; }},
      {"rule", "0", "1", [](O& o) { o.rule = UpdateRule::kAdam; }},
      {"reduction", "0", "1", [](O& o) { o.reduction = GradientReduction::kSum; }},
      {"bucket_elems", "1048576", "512", [](O& o) { o.bucket_elems = 512; }},
      {"record_elems", "262144", "512", [](O& o) { o.record_elems = 512; }},
      {"clip_grad_norm", "0", "0.5", [](O& o) { o.clip_grad_norm = 0.5; }},
      {"groups", "1", "2", [](O& o) { o.groups.resize(2); }},
      {"groups[0].learning_rate", "0.001", "0.002",
       [](O& o) { o.groups[0].learning_rate = 0.002; }},
      {"groups[0].beta1", "0.9", "0.5", [](O& o) { o.groups[0].beta1 = 0.5; }},
      {"groups[0].beta2", "0.999", "0.5", [](O& o) { o.groups[0].beta2 = 0.5; }},
      {"groups[0].epsilon", "1e-08", "0.5", [](O& o) { o.groups[0].epsilon = 0.5; }},
      {"groups[0].weight_decay", "0", "0.5", [](O& o) { o.groups[0].weight_decay = 0.5; }},
      {"schedule.kind", "0", "2",
       [](O& o) {
         o.schedule = {ScheduleKind::kCosine, 0, 10};
       }},
      {"schedule.warmup_steps", "0", "3", [](O& o) { o.schedule.warmup_steps = 3; }},
      {"schedule.base_batch_size", "0", "32",
       [](O& o) { o.schedule.base_batch_size = 32, o.schedule.batch_size = 64; }},
      {"check_collective_order", "0", "1", [](O& o) { o.check_collective_order = true; }},
  };
  for (const int world : {2, 3}) {
    for (const Change& change : changes) {
      RunRanks(world, [&](int rank, const Communicator& ranks) {
        EngineOptions options = OptionsOfStage(1);
        options.check_collective_order = false;
        if (rank == world - 1) change.set(options);
        const ModelSpec model = Tensors({10});
        const Status status =
            Engine::Create(options, {ranks}, model.parameters, model.units).status();
        EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
        EXPECT_THAT(Text(status), AllOf(HasSubstr("rank 0 has \"" + std::string(change.what)),
                                        HasSubstr(change.of_others), HasSubstr(change.of_last),
                                        HasSubstr("rank " + std::to_string(world - 1) + " has \"" +
                                                  std::string(change.what))));
      });
    }
  }
}

// These may differ: the result does not depend on them.
TEST(Disagreement, IsAllowedWhereItChangesNothing) {
  std::vector<std::vector<float>> results(3);
  RunRanks(3, [&](int rank, const Communicator& ranks) {
    EngineOptions options = OptionsOfStage(1);
    options.update_threads = 1 + rank;
    options.instruction_set = rank == 0 ? InstructionSet::kBaseline : InstructionSet::kBest;
    options.communication_timeout_s = 20 + rank;
    options.notice = [](const std::string&) {};
    Trainer trainer(options, ranks, Tensors({1000}), Constant(1));
    trainer.Step(Gradients({{0.3f}}));
    results[rank] = trainer.ReadStates();
  });
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

// The step is refused on every rank in the same words, changes nothing but the gradients, and the
// next one is as if it had not been.
void ExpectRefused(Trainer& trainer, Communicator ranks, const Status& status,
                   const std::vector<const char*>& words) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(Text(status), AllOf(HasSubstr("rank 0 has"), HasSubstr("rank 1 has")));
  for (const char* word : words) EXPECT_THAT(Text(status), HasSubstr(word));
  // The same text everywhere: the ranks bring it as an error, and each finds the first's.
  const Status lowest = ranks.Agree(absl::UnknownError(Text(status)));
  EXPECT_EQ(Text(lowest), "rank 0: " + Text(status));
  EXPECT_EQ(trainer.ReadAll(StateKind::kMoment1), std::vector<float>(310, 0.0f));
}

ModelSpec TwoUnits() { return TensorsInUnits({300, 10}); }
const GradientFunction kGradient = Gradients({{0.5f}, {-0.25f}});

std::vector<float> OneCleanStep(const EngineOptions& options, const Communicator& ranks) {
  Trainer trainer(options, ranks, TwoUnits(), Constant(1));
  trainer.Step(kGradient);
  std::vector<float> states = trainer.ReadStates();
  EXPECT_TRUE(trainer.engine().Close().ok());
  return states;
}

TEST(Disagreement, OfAGroupSetLater) {
  RunStages({2, 3}, [](const EngineOptions& options, int rank, Communicator ranks) {
    const std::vector<float> expected = OneCleanStep(options, ranks);
    Trainer trainer(options, ranks, TwoUnits(), Constant(1));
    const GroupOptions other = {.learning_rate = 0.75};
    if (rank == 1) {
      ASSERT_TRUE(trainer.engine().SetGroup(0, other).ok());
    }
    for (int repeat = 0; repeat < 2; ++repeat) {  // until it is mended
      ExpectRefused(trainer, ranks, trainer.TryStep(kGradient).status(),
                    {"groups[0].learning_rate: 0.001", "groups[0].learning_rate: 0.75"});
    }
    if (rank == 1) {
      ASSERT_TRUE(trainer.engine().SetGroup(0, options.groups[0]).ok());
    }
    EXPECT_EQ(trainer.Step(kGradient).step, 1);
    EXPECT_EQ(trainer.ReadStates(), expected);
  });
}

TEST(Disagreement, OfTheNumberOfMicroBatches) {
  RunStages({2, 3}, [](const EngineOptions& options, int rank, Communicator ranks) {
    if (options.zero_stage >= 2) return;  // each micro-batch is reduced: other collectives, Aborted
    const std::vector<float> expected = OneCleanStep(options, ranks);
    Trainer trainer(options, ranks, TwoUnits(), Constant(1));
    if (rank == 1) trainer.MicroBatch(kGradient, false);
    trainer.MicroBatch(kGradient);
    ExpectRefused(trainer, ranks, trainer.engine().Step().status(),
                  {"micro-batches in this step: 1", "micro-batches in this step: 2"});
    EXPECT_EQ(trainer.Step(kGradient).step, 1);
    EXPECT_EQ(trainer.ReadStates(), expected);
  });
}

TEST(Disagreement, OfValuesWritten) {
  RunStages({2, 3}, [](const EngineOptions& options, int rank, Communicator ranks) {
    const std::vector<float> expected = OneCleanStep(options, ranks);
    Trainer trainer(options, ranks, TwoUnits(), Constant(1));
    const auto last_bit = [rank](ParameterId, int64_t i) {
      return rank == 1 && i == 9 ? 1.0000001f : 1.0f;
    };
    trainer.WriteUnit(1, last_bit);
    for (int repeat = 0; repeat < 2; ++repeat) {
      ExpectRefused(trainer, ranks, trainer.TryStep(kGradient).status(),
                    {"values written to unit unit_b"});
    }
    trainer.WriteUnit(1, Constant(1));
    EXPECT_EQ(trainer.Step(kGradient).step, 1);
    EXPECT_EQ(trainer.ReadStates(), expected);
    if (options.zero_stage == 3) return;  // there one rank cannot acquire alone
    // Later too, when one rank alone writes, and what all have written before that step.
    if (rank == 1) trainer.WriteUnit(0, Constant(1));
    EXPECT_THAT(Text(trainer.TryStep(kGradient).status()),
                HasSubstr("values written to unit unit_a"));
    trainer.WriteUnit(0, Constant(2));
    EXPECT_EQ(trainer.Step(kGradient).step, 2);
  });
}

// A collective write of different values is refused before a byte changes.
TEST(Disagreement, OfTheValuesOfWrite) {
  RunStages({2, 3}, [](const EngineOptions& options, int rank, Communicator ranks) {
    Trainer trainer(options, ranks, TwoUnits(), Constant(1));
    const std::vector<float> before = trainer.ReadStates();
    std::vector<float> values(300, 7.0f);
    if (rank == 1) values.back() = 7.5f;
    for (const StateKind state : {StateKind::kMaster, StateKind::kMoment2}) {
      const Status status = trainer.engine().Write(0, state, 0, values);
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(Text(status), AllOf(HasSubstr("parameter a"), HasSubstr("hash of values")));
    }
    EXPECT_EQ(trainer.ReadStates(), before);
    EXPECT_TRUE(trainer.Step(kGradient).applied);
  });
}

// One rank has no micro-batch at all: it tells why, and is named.
TEST(Disagreement, OfARankThatOnlySteps) {
  RunStages({2, 3}, [](const EngineOptions& options, int rank, Communicator ranks) {
    const std::vector<float> expected = OneCleanStep(options, ranks);
    Trainer trainer(options, ranks, TwoUnits(), Constant(1));
    if (rank != 1) trainer.MicroBatch(kGradient);
    const Status status = trainer.engine().Step().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(Text(status), AllOf(HasSubstr("rank 1: Step"), HasSubstr("BeginMicroBatch")));
    EXPECT_EQ(trainer.Step(kGradient).step, 1);
    EXPECT_EQ(trainer.ReadStates(), expected);
  });
}

}  // namespace
}  // namespace zerohold::testing
