// 16-bit types, masters and the loss scale through the engine, by the ids of the cases, and the
// exact values that a master, a scale and an fp32 sum are there for.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "src/base/convert.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

float RoundToFloat16(float value) { return base::Float16ToFloat(base::FloatToFloat16(value)); }

ModelSpec OfType(ModelSpec model, DType dtype) {
  for (ParameterSpec& spec : model.parameters) spec.dtype = dtype;
  return model;
}

// Gradients as a trainer gives them under a loss scale: multiplied by it in fp32, then rounded.
GradientFunction Scaled(const Trainer& trainer, std::vector<std::vector<float>> all) {
  const auto scale = static_cast<float>(trainer.engine().LossScale());
  for (std::vector<float>& one : all) {
    for (float& element : one) element *= scale;
  }
  return Gradients(std::move(all));
}

std::vector<float> CopyOf(Trainer& trainer, ParameterId id) {
  Engine& engine = trainer.engine();
  const UnitId unit = 0;
  EXPECT_TRUE(engine.Acquire(unit, AcquireMode::kEvaluate).ok());
  const TensorView view = engine.Parameter(id);
  std::vector<float> values(view.elems);
  for (int64_t i = 0; i < view.elems; ++i) values[i] = Trainer::Get(view, i);
  EXPECT_TRUE(engine.Release(unit).ok());
  return values;
}

// The decay acts on the master, and the bf16 copy follows.
TEST(NumericsCases, NUM_08) {
  for (const MasterForm form : {MasterForm::kFloat32, MasterForm::kRemainder}) {
    RunStages({2}, [form](EngineOptions options, int, Communicator ranks) {
      options.master = form;
      options.groups[0].weight_decay = 1e-2;
      Trainer trainer(options, ranks, OfType(Tensors({300}), DType::kBFloat16), Constant(1));
      for (int step = 0; step < 1000; ++step) trainer.Step(Gradients({{0}}));
      for (const float master : trainer.Read(0)) ASSERT_NEAR(master, 0.9900498, 6e-5);
      EXPECT_EQ(CopyOf(trainer, 0), std::vector<float>(300, 0.98828125f));
    });
  }
}

// An overflow halves the scale and begins to count anew; so many clean steps double it.
TEST(NumericsCases, NUM_10) {
  const std::string outcomes = "OkkkkOkkk";
  const double scales[] = {32768, 32768, 32768, 65536, 65536, 32768, 32768, 32768, 65536};
  for (const DType dtype : kTypes) {
    RunStages({1, 2, 3}, [&](EngineOptions options, int rank, Communicator ranks) {
      options.loss_scale = {.enabled = true, .initial = 65536, .growth_interval = 3};
      Trainer trainer(options, ranks, OfType(Tensors({300}), dtype), Constant(1));
      for (size_t i = 0; i < outcomes.size(); ++i) {
        const bool overflow = outcomes[i] == 'O';
        const bool mine = overflow && rank == ranks.size() - 1;
        const double used = trainer.engine().LossScale();
        const StepStats stats = trainer.Step(Gradients({{mine ? kInfinity : 1.0f}}));
        EXPECT_EQ(stats.applied, !overflow) << i;
        EXPECT_EQ(stats.loss_scale, used) << i;
        EXPECT_EQ(trainer.engine().LossScale(), scales[i]) << i;
      }
    });
  }
}

// The scale ends at its cap, finite, and no step is lost.
TEST(NumericsCases, NUM_12) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.loss_scale = {.enabled = true, .initial = 0x1p126, .growth_interval = 1};
    Trainer trainer(options, ranks, Tensors({300}), Constant(1));
    for (int step = 1; step <= 10; ++step) {
      const StepStats stats = trainer.Step(Scaled(trainer, {{1e-36f}}));
      EXPECT_TRUE(stats.applied);
      EXPECT_EQ(stats.step, step);
      EXPECT_EQ(trainer.engine().LossScale(), 0x1p127);
    }
  });
}

// An overflow in the last shard alone, under a scale: all ranks skip, halve once, and the next step
// is the first. The scale changes by powers of two, so the bits are the same.
TEST(NumericsCases, NUM_14_Scaled) {
  for (const DType dtype : kTypes) {
    for (const int64_t elems : {10, 4 * 256}) {
      RunStages({1, 2, 3, 4}, [=](EngineOptions options, int rank, Communicator ranks) {
        options.loss_scale = {.enabled = true, .initial = 1024};
        const ModelSpec model = OfType(Tensors({elems}), dtype);
        std::vector<float> clean(elems);
        for (int64_t i = 0; i < elems; ++i) clean[i] = static_cast<float>(i % 7 - rank);
        Trainer reference(options, ranks, model, Constant(1));
        reference.Step(Scaled(reference, {clean}));
        const std::vector<float> expected = reference.ReadStates();
        ASSERT_TRUE(reference.engine().Close().ok());

        Trainer trainer(options, ranks, model, Constant(1));
        const std::vector<float> first = trainer.ReadStates();
        std::vector<float> bad = clean;
        if (rank == 0) bad.back() = kInfinity;
        const StepStats skipped = trainer.Step(Scaled(trainer, {bad}));
        EXPECT_FALSE(skipped.applied);
        EXPECT_EQ(skipped.skip_reason, SkipReason::kNonFiniteGradient);
        EXPECT_EQ(skipped.step, 0);
        EXPECT_EQ(trainer.engine().LossScale(), 512);
        EXPECT_EQ(trainer.ReadStates(), first);
        EXPECT_EQ(trainer.Step(Scaled(trainer, {clean})).step, 1);
        EXPECT_EQ(trainer.ReadStates(), expected);
      });
    }
  }
}

// In bf16 without a scale: nothing changes sign or turns NaN under a clip.
TEST(NumericsCases, NUM_16_BFloat16) {
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    RunStages({2}, [bad](EngineOptions options, int, Communicator ranks) {
      options.clip_grad_norm = 1.0;
      Trainer trainer(options, ranks, OfType(Tensors({2}), DType::kBFloat16), Constant(1));
      const StepStats skipped = trainer.Step(Gradients({{bad, 1}}));
      EXPECT_FALSE(skipped.applied);
      EXPECT_EQ(skipped.skip_reason, SkipReason::kNonFiniteGradient);
      EXPECT_EQ(trainer.ReadStates(), (std::vector<float>{1, 1, 0, 0, 0, 0}));
      EXPECT_EQ(CopyOf(trainer, 0), (std::vector<float>{1, 1}));
      EXPECT_TRUE(trainer.Step(Gradients({{3, 4}})).applied);
      const std::vector<float> moment1 = trainer.Read(0, StateKind::kMoment1);
      EXPECT_NEAR(moment1[0], 0.0599999880, 1e-7);
      EXPECT_NEAR(moment1[1], 0.0799999840, 1e-7);
    });
  }
}

// The norm, and with it the clip, is of the gradient unscaled by the scale of its backward pass,
// also in the very step after which the scale grows.
TEST(NumericsCases, NUM_18) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.loss_scale = {.enabled = true, .initial = 1024, .growth_interval = 1};
    options.clip_grad_norm = 1.0;
    Trainer trainer(options, ranks, OfType(Tensors({2}), DType::kFloat16), Constant(1));
    for (const double scale : {1024, 2048, 4096}) {
      const StepStats stats = trainer.Step(Scaled(trainer, {{3, 4}}));
      EXPECT_EQ(stats.loss_scale, scale);
      EXPECT_NEAR(stats.grad_norm, 5.0, 1e-3);
      EXPECT_NEAR(stats.clip_factor, 0.2, 1e-4);
      EXPECT_EQ(trainer.engine().LossScale(), 2 * scale);
    }
  });
}

// There is one norm, the 2-norm that options.h documents: no option names another. A limit that
// asks for the infinite one is refused by its field.
TEST(NumericsCases, NUM_24) {
  RunStages({3}, [](EngineOptions options, int, Communicator ranks) {
    const ModelSpec model = Tensors({7});
    options.clip_grad_norm = kInfinity;
    const Status refused = Engine::Create(options, {ranks}, model.parameters, model.units).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(refused.message().find("clip_grad_norm is inf"), absl::string_view::npos) << refused;
    options.clip_grad_norm = 7.0;
    Trainer trainer(options, ranks, model, Constant(1));
    const StepStats stats = trainer.Step(Gradients({{-7, 2, 0.5f, 1, 0, 3, -1}}));
    EXPECT_EQ(stats.grad_norm, std::sqrt(64.25));
    EXPECT_NEAR(stats.clip_factor, 7.0 / std::sqrt(64.25), 1e-6);
  });
}

// Sums over ranks neither overflow nor lose what fp16 holds; nor do those over micro-batches.
TEST(NumericsCases, NUM_30) {
  RunStages({1, 2, 3, 4}, [](EngineOptions options, int, Communicator ranks) {
    for (const int micro_batches : {1, 4}) {
      Trainer trainer(options, ranks, OfType(Tensors({300, 300}), DType::kFloat16), Constant(1));
      for (int i = 0; i < micro_batches; ++i) {
        trainer.MicroBatch(Gradients({{30000}, {0x1p-24f}}), i + 1 == micro_batches);
      }
      EXPECT_TRUE(trainer.Step().applied);
      EXPECT_EQ(trainer.Read(0, StateKind::kGradient), std::vector<float>(300, 30000.0f));
      EXPECT_EQ(trainer.Read(1, StateKind::kGradient), std::vector<float>(300, 0x1p-24f));
    }
  });
}

// Views of 16-bit tensors begin at multiples of 64 bytes too, and keep their values to themselves.
TEST(PartitioningCases, PAR_18_16BitTypes) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    RunStages({1, 2, 3}, [dtype](const EngineOptions& options, int, Communicator ranks) {
      const auto value = [](ParameterId id, int64_t i) { return static_cast<float>(16 * id + i); };
      Trainer trainer(options, ranks, OfType(Tensors({1, 3, 5, 7}), dtype), value);
      for (ParameterId id = 0; id < 4; ++id) {
        const Engine& engine = trainer.engine();
        EXPECT_EQ(reinterpret_cast<uintptr_t>(engine.Parameter(id).data) % 64, 0u);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(engine.Gradient(id).data) % 64, 0u);
        const std::vector<float> copy = CopyOf(trainer, id);
        for (size_t i = 0; i < copy.size(); ++i) {
          EXPECT_EQ(copy[i], value(id, static_cast<int64_t>(i)));
        }
        EXPECT_EQ(trainer.Read(id), copy);
      }
    });
  }
}

// Each type of parameter, its gradient in the same type or, summed over micro-batches, in fp32, is
// right to its rounding and stays between its neighbours.
TEST(NumericsCases, NUM_40) {
  for (const DType dtype : kTypes) {
    for (const MasterForm form : {MasterForm::kFloat32, MasterForm::kRemainder}) {
      if (dtype == DType::kFloat16 && form == MasterForm::kRemainder) continue;
      RunStages({1, 2, 3}, [=](EngineOptions options, int, Communicator ranks) {
        options.master = form;
        options.groups = {{.learning_rate = 0x1p-6}, {.learning_rate = 0.0}};
        options.bucket_elems = 512;
        std::vector<float> gradient(1001);
        for (int i = 0; i < 1001; ++i) gradient[i] = i % 2 == 0 ? 0.5f : -0.25f;
        ModelSpec model = OfType(Tensors({7, 1001, 9}), dtype);
        model.parameters[0].group = model.parameters[2].group = 1;
        for (const int64_t micro_batches : {1, 2}) {
          options.max_micro_batches = micro_batches;
          Trainer trainer(options, ranks, model, Constant(1));
          for (int64_t i = 0; i < micro_batches; ++i) {
            trainer.MicroBatch(Gradients({{0}, gradient, {0}}), i + 1 == micro_batches);
          }
          trainer.Step();
          EXPECT_EQ(trainer.Read(1, StateKind::kGradient), gradient);
          const std::vector<float> copy = CopyOf(trainer, 1);
          for (int i = 0; i < 1001; ++i) {
            ASSERT_NEAR(copy[i], i % 2 == 0 ? 0.984375f : 1.015625f,
                        dtype == DType::kFloat32 ? 1e-7 : 0.0)
                << NameOf(dtype) << ' ' << i;
          }
          EXPECT_EQ(CopyOf(trainer, 0), std::vector<float>(7, 1.0f));
          EXPECT_EQ(CopyOf(trainer, 2), std::vector<float>(9, 1.0f));
        }
      });
    }
  }
}

// Ten updates of 1e-4 are lost in fp16, whose grid below 1 is 2^-11, and kept by a master.
TEST(ExactValues, SmallUpdatesOfAnFp16Weight) {
  float alone = RoundToFloat16(1.0f);
  for (int step = 0; step < 10; ++step) alone = RoundToFloat16(alone - RoundToFloat16(1e-4f));
  EXPECT_EQ(alone, 1.0f);
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.rule = UpdateRule::kSgd;
    options.groups[0].learning_rate = 1e-4;
    Trainer trainer(options, ranks, OfType(Tensors({300}), DType::kFloat16), Constant(1));
    for (int step = 0; step < 10; ++step) trainer.Step(Gradients({{1}}));
    EXPECT_EQ(trainer.Read(0), std::vector<float>(300, 0.998999834f));
    EXPECT_EQ(CopyOf(trainer, 0), std::vector<float>(300, RoundToFloat16(0.998999834f)));
  });
}

// A gradient that fp16 does not hold comes back through a scale of 65536.
TEST(ExactValues, TinyGradientThroughALossScale) {
  EXPECT_EQ(RoundToFloat16(1e-8f), 0.0f);
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.rule = UpdateRule::kSgd;
    options.groups[0].learning_rate = 1.0;
    for (const bool scaled : {false, true}) {
      options.loss_scale.enabled = scaled;
      Trainer trainer(options, ranks, OfType(Tensors({300}), DType::kFloat16), Constant(0));
      const StepStats stats = trainer.Step(Scaled(trainer, {{1e-8f}}));
      EXPECT_EQ(stats.loss_scale, scaled ? 65536 : 1);
      for (const float value : trainer.Read(0)) {
        ASSERT_NEAR(value, scaled ? -9.997e-9 : 0.0, scaled ? 1e-12 : 0.0);
      }
      EXPECT_NEAR(stats.grad_norm, scaled ? 9.997e-9 * std::sqrt(300.0) : 0.0, 1e-11);
    }
  });
}

// 4096 ones, over micro-batches and ranks: fp16 stops at 2048, where 1 is half its grid.
TEST(ExactValues, ManyOnesAreSummedInFp32) {
  float alone = 0.0f;
  for (int i = 0; i < 4096; ++i) alone = RoundToFloat16(alone + 1.0f);
  EXPECT_EQ(alone, 2048.0f);
  RunStages({2}, [](EngineOptions options, int, Communicator ranks) {
    options.reduction = GradientReduction::kSum;
    options.max_micro_batches = 4096 / ranks.size();
    for (const bool reproducible : {false, true}) {
      options.reproducible = reproducible;
      Trainer trainer(options, ranks, OfType(Tensors({3}), DType::kFloat16), Constant(0));
      for (int64_t i = 1; i <= options.max_micro_batches; ++i) {
        trainer.MicroBatch(Gradients({{1}}), i == options.max_micro_batches);
      }
      EXPECT_NEAR(trainer.Step().grad_norm, 4096 * std::sqrt(3.0), 1e-9);
      EXPECT_EQ(trainer.Read(0, StateKind::kGradient), std::vector<float>(3, 4096.0f));
    }
  });
}

}  // namespace
}  // namespace zerohold::testing
