// Numerical wrongness that others shipped, by the ids of the cases: the update, the norm, skips.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// eps is added to the root, bare.
TEST(NumericsCases, NUM_02) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.groups[0].epsilon = 1e-6;
    Trainer trainer(options, ranks, Tensors({1}), Constant(0));
    trainer.Step(Gradients({{1e-6f}}));
    EXPECT_NEAR(trainer.Read(0)[0], -5.0e-4, 1e-8);
  });
}

// Decoupled decay and L2 are two rules with two results.
TEST(NumericsCases, NUM_04) {
  struct Case {
    UpdateRule rule;
    double after_one, after_two;
  };
  for (const Case& expected : {Case{UpdateRule::kAdamW, 1.880000002, 1.834566299},
                               Case{UpdateRule::kAdam, 1.900000001, 1.839597387}}) {
    RunStages({1, 2, 3}, [&](EngineOptions options, int, Communicator ranks) {
      options.rule = expected.rule;
      options.groups[0].learning_rate = 0.1;
      options.groups[0].weight_decay = 0.1;
      Trainer trainer(options, ranks, Tensors({1}), Constant(2));
      trainer.Step(Gradients({{0.5f}}));
      EXPECT_NEAR(trainer.Read(0)[0], expected.after_one, 1e-6);
      trainer.Step(Gradients({{-0.25f}}));
      EXPECT_NEAR(trainer.Read(0)[0], expected.after_two, 1e-6);
    });
  }
}

// A unit that no rank reports is skipped: it keeps its values, its states and its own step count.
TEST(NumericsCases, NUM_06) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.groups[0].learning_rate = 0.1;
    Trainer trainer(options, ranks, TensorsInUnits({1, 1}), Constant(1));
    trainer.Step(Gradients({{0.5f}, {0.5f}}));
    EXPECT_NEAR(trainer.Read(0)[0], 0.9, 1e-6);
    EXPECT_NEAR(trainer.Read(1)[0], 0.9, 1e-6);
    const std::vector<float> before[] = {trainer.Read(1), trainer.Read(1, StateKind::kMoment1),
                                         trainer.Read(1, StateKind::kMoment2)};
    trainer.Step(Gradients({{0.5f}, {}}), {0});
    EXPECT_NEAR(trainer.Read(0)[0], 0.8, 1e-6);
    EXPECT_EQ(trainer.Read(1), before[0]);
    EXPECT_EQ(trainer.Read(1, StateKind::kMoment1), before[1]);
    EXPECT_EQ(trainer.Read(1, StateKind::kMoment2), before[2]);
    trainer.Step(Gradients({{0.5f}, {-0.25f}}));
    EXPECT_NEAR(trainer.Read(0)[0], 0.7, 1e-6);
    EXPECT_NEAR(trainer.Read(1)[0], 0.8733663, 1e-6);
  });
}

// The same rule with decay: an absent unit does not decay either.
TEST(NumericsCases, NUM_06_AnAbsentUnitDoesNotDecay) {
  RunStages({2}, [](EngineOptions options, int, Communicator ranks) {
    options.groups[0].weight_decay = 0.1;
    Trainer trainer(options, ranks, TensorsInUnits({300, 300}), Constant(1));
    trainer.Step(Gradients({{0.5f}, {}}), {0});
    EXPECT_EQ(trainer.Read(1), std::vector<float>(300, 1.0f));
  });
}

// Each of many units by itself, whatever the ranks' shares of the reports.
TEST(NumericsCases, NUM_06_ManyUnits) {
  constexpr int kUnits = 130;
  ModelSpec model;
  for (int i = 0; i < kUnits; ++i) {
    const std::string name = std::to_string(i);
    model.parameters.push_back({name, {2}});
    model.units.push_back({name, {name}, {}});
  }
  const auto absent = [](int unit) { return unit % 63 == 0 || unit == 64 || unit == 129; };
  RunStages({1, 3}, [&](const EngineOptions& options, int rank, Communicator ranks) {
    if (options.zero_stage == 3) return;  // there an acquire is collective
    std::vector<UnitId> mine;
    for (int unit = 0; unit < kUnits; ++unit) {
      if (!absent(unit) && unit % ranks.size() == rank) mine.push_back(unit);
    }
    Trainer trainer(options, ranks, model, Constant(1));
    const auto six = [](ParameterId, std::span<const float>, std::span<float> out) {
      for (float& element : out) element += 6.0f;
    };
    EXPECT_TRUE(trainer.Step(six, mine).applied);
    for (int unit = 0; unit < kUnits; ++unit) {
      const float mean = absent(unit) ? 0.0f : 6.0f / static_cast<float>(ranks.size());
      EXPECT_EQ(trainer.Read(unit, StateKind::kGradient), (std::vector<float>{mean, mean}));
      EXPECT_EQ(trainer.Read(unit)[1] == 1.0f, absent(unit)) << unit;
    }
  });
}

// One rank's infinity in another rank's shard: all skip, and the next step is the first.
TEST(NumericsCases, NUM_14) {
  for (const int64_t elems : {10, 4 * 256}) {  // 256 elements a shard at least
    RunStages({1, 2, 3, 4}, [elems](EngineOptions options, int rank, Communicator ranks) {
      options.clip_grad_norm = 1.0;
      std::vector<float> clean(elems);
      for (int64_t i = 0; i < elems; ++i) clean[i] = static_cast<float>(i % 7 - rank);
      Trainer reference(options, ranks, Tensors({elems}), Constant(1));
      reference.Step(Gradients({clean}));
      const std::vector<float> expected = reference.ReadStates();
      ASSERT_TRUE(reference.engine().Close().ok());

      Trainer trainer(options, ranks, Tensors({elems}), Constant(1));
      const std::vector<float> first = trainer.ReadStates();
      std::vector<float> bad = clean;
      if (rank == 0) bad.back() = kInfinity;
      const StepStats skipped = trainer.Step(Gradients({bad}));
      EXPECT_FALSE(skipped.applied);
      EXPECT_EQ(skipped.skip_reason, SkipReason::kNonFiniteGradient);
      EXPECT_EQ(skipped.step, 0);
      EXPECT_EQ(trainer.ReadStates(), first);
      const StepStats applied = trainer.Step(Gradients({clean}));
      EXPECT_TRUE(applied.applied);
      EXPECT_EQ(applied.skip_reason, SkipReason::kNone);
      EXPECT_EQ(applied.step, 1);
      EXPECT_EQ(trainer.ReadStates(), expected);
    });
  }
}

// No value and no moment changes sign or turns NaN under a clip, whatever is not finite.
TEST(NumericsCases, NUM_16) {
  for (const float bad : {kInfinity, -kInfinity, kNaN}) {
    RunStages({1, 2, 3}, [bad](EngineOptions options, int, Communicator ranks) {
      options.clip_grad_norm = 1.0;
      Trainer trainer(options, ranks, Tensors({2}), Constant(1));
      trainer.Step(Gradients({{3, 4}}));
      const std::vector<float> before = trainer.ReadStates();
      const StepStats skipped = trainer.Step(Gradients({{bad, 1}}));
      EXPECT_FALSE(skipped.applied);
      EXPECT_EQ(skipped.skip_reason, SkipReason::kNonFiniteGradient);
      EXPECT_EQ(trainer.ReadStates(), before);
    });
    RunStages({2}, [bad](EngineOptions options, int, Communicator ranks) {
      options.clip_grad_norm = 1.0;
      Trainer trainer(options, ranks, Tensors({2}), Constant(1));
      EXPECT_FALSE(trainer.Step(Gradients({{bad, 1}})).applied);
      EXPECT_EQ(trainer.ReadStates(), (std::vector<float>{1, 1, 0, 0, 0, 0}));
      EXPECT_TRUE(trainer.Step(Gradients({{3, 4}})).applied);
      const std::vector<float> moment1 = trainer.Read(0, StateKind::kMoment1);
      EXPECT_NEAR(moment1[0], 0.0599999880, 1e-7);
      EXPECT_NEAR(moment1[1], 0.0799999840, 1e-7);
    });
  }
}

// Finite on every rank, but not their sum.
TEST(NumericsCases, NUM_16_ASumThatOverflowsIsSkipped) {
  RunStages({2, 3}, [](EngineOptions options, int, Communicator ranks) {
    Trainer trainer(options, ranks, Tensors({2}), Constant(1));
    EXPECT_FALSE(trainer.Step(Gradients({{3e38f, 1}})).applied);
    EXPECT_EQ(trainer.ReadStates(), (std::vector<float>{1, 1, 0, 0, 0, 0}));
  });
}

// Large but finite is clipped, not skipped.
TEST(NumericsCases, NUM_16_ALargeNormIsClipped) {
  RunStages({1, 2}, [](EngineOptions options, int, Communicator ranks) {
    options.clip_grad_norm = 1.0;
    Trainer trainer(options, ranks, Tensors({2}), Constant(1));
    EXPECT_NEAR(trainer.Step(Gradients({{3e30f, 4e30f}})).grad_norm, 5e30, 1e24);
    const std::vector<float> moment1 = trainer.Read(0, StateKind::kMoment1);
    EXPECT_NEAR(moment1[0], 0.06, 1e-7);
    EXPECT_NEAR(moment1[1], 0.08, 1e-7);
  });
}

// The norm is of the averaged gradient, over all shards; the same double for every world and stage.
TEST(NumericsCases, NUM_20) {
  for (const int64_t elems : {10, 10 * 300}) {
    RunStages({1, 2, 3, 4, 7}, [elems](EngineOptions options, int rank, Communicator ranks) {
      std::vector<float> mine(elems, 0.0f);
      for (int i = 0; i < 10; ++i) {  // spread over the tensor; the ranks differ
        mine[i * elems / 10] = static_cast<float>(i + 1 + 2 * rank - (ranks.size() - 1));
      }
      Trainer trainer(options, ranks, Tensors({elems}), Constant(0));
      const StepStats stats = trainer.Step(Gradients({mine}));
      EXPECT_NEAR(stats.grad_norm, 19.6214169, 1e-5);
      EXPECT_EQ(stats.grad_norm, std::sqrt(385.0));  // the squares are integers below 2^24
    });
  }
}

// A tensor smaller than any shard is counted once.
TEST(NumericsCases, NUM_22) {
  RunStages({1, 2, 3, 4}, [](EngineOptions options, int, Communicator ranks) {
    for (const ModelSpec& model : {Tensors({1, 8}), TensorsInUnits({1, 8})}) {
      Trainer trainer(options, ranks, model, Constant(0));
      const StepStats stats = trainer.Step(Gradients({{3}, {4, 0, 0, 0, 0, 0, 0, 0}}));
      EXPECT_NEAR(stats.grad_norm, 5.0, 1e-6);
    }
  });
}

// Stage 3 keeps it whole on every rank below the threshold: it is there without an acquire, counted
// once, and updated once.
TEST(NumericsCases, NUM_22_KeptWhole) {
  for (const int world : {1, 2, 3, 4}) {
    RunRanks(world, [](int, const Communicator& ranks) {
      const auto train = [&](const EngineOptions& options, bool kept) {
        Trainer trainer(options, ranks, TensorsInUnits({1, 8}), Constant(1));
        for (int step = 0; step < 3; ++step) {
          const StepStats stats = trainer.Step(Gradients({{3}, {4, 0, 0, 0, 0, 0, 0, 0}}));
          EXPECT_NEAR(stats.grad_norm, 5.0, 1e-6);
        }
        if (kept) {
          EXPECT_EQ(trainer.Values(0)[0], trainer.Read(0)[0]);
        }
        return trainer.ReadStates();
      };
      EngineOptions options = OptionsOfStage(3);
      options.persistence_threshold_elems = 4;
      EXPECT_EQ(train(options, true), train(OptionsOfStage(0), true));
      options.persistence_threshold_elems = 0;
      EXPECT_EQ(train(options, false), train(OptionsOfStage(0), true));
    });
  }
}

// A tensor that model-parallel ranks replicate is counted by its share.
TEST(NumericsCases, NUM_22_NormWeight) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    ModelSpec model = Tensors({1, 300, 2});
    model.parameters[1].norm_weight = 0.25;
    model.parameters[2].norm_weight = 0.5;
    Trainer trainer(options, ranks, model, Constant(0));
    const StepStats stats = trainer.Step(Gradients({{3}, {2}, {4}}));
    EXPECT_NEAR(stats.grad_norm, std::sqrt(9 + 0.25 * 300 * 4 + 0.5 * 2 * 16), 1e-6);
  });
}

// The gradient is the mean over ranks and micro-batches; the sum when that is asked for.
TEST(NumericsCases, NUM_26) {
  RunStages({2}, [](EngineOptions options, int rank, Communicator ranks) {
    for (const GradientReduction reduction : {GradientReduction::kMean, GradientReduction::kSum}) {
      options.reduction = reduction;
      const float expected = reduction == GradientReduction::kMean ? 4 : 16;
      Trainer trainer(options, ranks, Tensors({1}), Constant(0));
      trainer.MicroBatch(Gradients({{rank == 0 ? 1.0f : 5.0f}}), false);
      trainer.MicroBatch(Gradients({{rank == 0 ? 3.0f : 7.0f}}), true);
      EXPECT_NEAR(trainer.Step().grad_norm, expected, 1e-6);
      EXPECT_NEAR(trainer.Read(0, StateKind::kGradient)[0], expected, 1e-6);
      EXPECT_NEAR(trainer.Read(0, StateKind::kMoment1)[0], 0.1 * expected, 1e-6);
      EXPECT_NEAR(trainer.Read(0, StateKind::kMoment2)[0], 0.001 * expected * expected, 1e-6);
    }
  });
}

// A unit that reports in one of two micro-batches is zero in the other.
TEST(NumericsCases, NUM_26_AUnitThatReportsInSomeMicroBatches) {
  RunStages({1, 2}, [](const EngineOptions& options, int, Communicator ranks) {
    for (const bool first : {false, true}) {
      Trainer trainer(options, ranks, TensorsInUnits({300, 20}), Constant(0));
      const std::vector<UnitId> both = {0, 1};
      const std::vector<UnitId> one = {0};
      trainer.MicroBatch(Gradients({{1}, {8}}), false, first ? both : one);
      trainer.MicroBatch(Gradients({{3}, {8}}), true, first ? one : both);
      EXPECT_TRUE(trainer.Step().applied);
      for (const float value : trainer.Read(0, StateKind::kGradient)) EXPECT_EQ(value, 2.0f);
      for (const float value : trainer.Read(1, StateKind::kGradient)) EXPECT_EQ(value, 4.0f);
    }
  });
}

// A flush divides by the micro-batches really seen, and nothing of them is left for the next step.
TEST(NumericsCases, NUM_28) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.groups[0].learning_rate = 0.1;
    Trainer trainer(options, ranks, Tensors({1}), Constant(10));
    trainer.MicroBatch(Gradients({{1}}), false);
    trainer.MicroBatch(Gradients({{2}}), true);
    trainer.Step();
    EXPECT_NEAR(trainer.Read(0)[0], 9.9, 5e-6);
    trainer.MicroBatch(Gradients({{3}}), false);
    trainer.MicroBatch(Gradients({{4}}), true);
    trainer.Step();
    EXPECT_NEAR(trainer.Read(0)[0], 9.8052140, 5e-6);
    trainer.MicroBatch(Gradients({{5}}), false);
    EXPECT_NEAR(trainer.Step().grad_norm, 5.0, 1e-6);
    EXPECT_NEAR(trainer.Read(0)[0], 9.7100055, 5e-6);
  });
}

TEST(NumericsCases, NUM_32) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.groups = {{.learning_rate = 0.1}, {.learning_rate = 1e-3, .weight_decay = 0.1}};
    ModelSpec model = Tensors({1, 1});
    model.parameters[1].group = 1;
    Trainer trainer(options, ranks, model, Constant(1));
    trainer.Step(Gradients({{0.5f}, {0.5f}}));
    EXPECT_NEAR(trainer.Read(0)[0], 0.9000000, 1e-6);
    EXPECT_NEAR(trainer.Read(1)[0], 0.9989000, 1e-6);
    trainer.Step(Gradients({{-0.25f}, {-0.25f}}));
    EXPECT_NEAR(trainer.Read(0)[0], 0.8733663, 1e-6);
    EXPECT_NEAR(trainer.Read(1)[0], 0.9985338, 1e-6);
  });
}

// The float64 oracle of the cases.
double Oracle(const GroupOptions& group, double value, const std::vector<double>& gradients) {
  double m = 0, v = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const double g = gradients[i];
    const auto t = static_cast<double>(i + 1);
    m = group.beta1 * m + (1 - group.beta1) * g;
    v = group.beta2 * v + (1 - group.beta2) * g * g;
    value *= 1 - group.learning_rate * group.weight_decay;
    value -= group.learning_rate * (m / (1 - std::pow(group.beta1, t))) /
             (std::sqrt(v / (1 - std::pow(group.beta2, t))) + group.epsilon);
  }
  return value;
}

// Betas and eps too, those of SetGroup too, when groups alternate inside one flat space.
TEST(NumericsCases, NUM_32_EveryFieldOfEveryGroup) {
  const std::vector<GroupOptions> groups = {
      {.learning_rate = 0.01, .beta1 = 0.5, .beta2 = 0.9, .epsilon = 0.1, .weight_decay = 0.2},
      {.learning_rate = 0.1, .beta1 = 0.0, .beta2 = 0.99, .epsilon = 1e-3, .weight_decay = 0.0},
      {.learning_rate = 0.02, .beta1 = 0.9, .beta2 = 0.0, .epsilon = 0.5, .weight_decay = 0.01}};
  const std::vector<double> gradients = {0.5, -0.25, 2.0, 1e-3};
  RunStages({1, 2, 3}, [&](EngineOptions options, int, Communicator ranks) {
    options.groups.resize(groups.size());  // set later
    ModelSpec model = Tensors({300, 1, 700, 65, 257, 100});
    for (size_t id = 0; id < model.parameters.size(); ++id) {
      model.parameters[id].group = static_cast<int>(id % groups.size());
    }
    Trainer trainer(options, ranks, model, Constant(1.5));
    for (size_t i = 0; i < groups.size(); ++i) {
      ASSERT_TRUE(trainer.engine().SetGroup(static_cast<int>(i), groups[i]).ok());
    }
    for (const double gradient : gradients) {
      trainer.Step([gradient](ParameterId, std::span<const float>, std::span<float> out) {
        for (float& element : out) element += static_cast<float>(gradient);
      });
    }
    for (size_t id = 0; id < model.parameters.size(); ++id) {
      const double expected = Oracle(groups[id % groups.size()], 1.5, gradients);
      for (const float value : trainer.Read(static_cast<ParameterId>(id))) {
        ASSERT_NEAR(value, expected, 1e-6) << "parameter " << id;
      }
    }
  });
}

}  // namespace
}  // namespace zerohold::testing
