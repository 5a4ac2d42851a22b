// Units that come later: as if they had been there, where they come before the first step; with
// step counts of their own, where they come after it; and all that was there stays as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

ModelSpec First(DType dtype = DType::kFloat32) {
  return {{{"embedding", {37, 11}, dtype},
           {"weight", {1000, 3}, dtype},
           {"bias", {7}, dtype},
           {"empty", {0, 8}, dtype}},
          {{"in", {"embedding"}, {}}, {"block", {"weight", "bias", "empty"}, {}}}};
}

// Its ids come after those of First.
ModelSpec Later(DType dtype = DType::kFloat32) {
  return {{{"late.weight", {701, 5}, dtype}, {"late.bias", {13}, dtype}, {"head", {}, dtype}},
          {{"late", {"late.weight", "late.bias"}, {}}, {"out", {"head"}, {}}}};
}
constexpr ParameterId kFirstLater = 4;

ModelSpec Joined(ModelSpec model, const ModelSpec& more) {
  model.parameters.insert(model.parameters.end(), more.parameters.begin(), more.parameters.end());
  model.units.insert(model.units.end(), more.units.begin(), more.units.end());
  return model;
}

// `offset` is added to ids: that of the parameter in the joined model.
ValueFunction Values(ParameterId offset = 0) {
  return [=](ParameterId id, int64_t i) {
    return std::sin(static_cast<float>((id + offset) * 1000 + i));
  };
}
GradientFunction Waves(int rank, int batch, double scale = 1.0, ParameterId offset = 0) {
  return [=](ParameterId id, std::span<const float> values, std::span<float> gradient) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      const auto phase =
          static_cast<float>((i * 7 + (id + offset) * 13 + rank * 5 + batch * 3) % 97);
      gradient[i] += (values[i] * 0.1f + 0.01f * (phase - 48.0f)) * static_cast<float>(scale);
    }
  };
}

struct Result {
  std::vector<float> states;
  std::vector<double> told;  // norms and loss scales
};

void TrainSteps(Trainer& trainer, int rank, int steps, int micro_batches, Result& result) {
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < micro_batches; ++i) {
      trainer.MicroBatch(Waves(rank, step * 10 + i, trainer.engine().LossScale()),
                         i + 1 == micro_batches);
    }
    const StepStats stats = trainer.Step();
    EXPECT_TRUE(stats.applied);
    result.told.insert(result.told.end(), {stats.grad_norm, stats.loss_scale});
  }
}

EngineOptions Options(EngineOptions options) {
  options.groups[0].learning_rate = 0.01;
  options.groups[0].weight_decay = 0.1;
  options.bucket_elems = 700;
  options.record_elems = 512;
  options.persistence_threshold_elems = 300;
  options.loss_scale = {.enabled = true, .initial = 256, .growth_interval = 2};
  return options;
}

class EveryDType : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(AddUnits, EveryDType,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16, DType::kFloat16),
                         [](const auto& info) { return std::string(NameOf(info.param)); });

TEST_P(EveryDType, BeforeTheFirstStepTheyAreAsIfFromCreate) {
  RunStages({1, 2, 3}, [](EngineOptions options, int rank, Communicator ranks) {
    options = Options(options);
    options.clip_grad_norm = 1.0;
    for (const int micro_batches : {1, 3}) {
      options.max_micro_batches = micro_batches;
      Result expected;
      {
        Trainer trainer(options, ranks, Joined(First(GetParam()), Later(GetParam())), Values());
        TrainSteps(trainer, rank, 4, micro_batches, expected);
        expected.states = trainer.ReadStates();
      }
      Trainer trainer(options, ranks, First(GetParam()), Values());
      ASSERT_TRUE(trainer.AddUnits(Later(GetParam()), Values()).ok());
      Result result;
      TrainSteps(trainer, rank, 4, micro_batches, result);
      EXPECT_EQ(trainer.ReadStates(), expected.states) << micro_batches;
      EXPECT_EQ(result.told, expected.told) << micro_batches;
      EXPECT_TRUE(trainer.engine().Close().ok());
    }
  });
}

// After three steps: what was there goes on as if alone, what comes as if it began.
TEST_P(EveryDType, LaterTheyCountTheirOwnSteps) {
  RunStages({1, 2, 3}, [](EngineOptions options, int rank, Communicator ranks) {
    options = Options(options);
    options.max_micro_batches = 1;
    Result alone;
    Result fresh;
    {
      Trainer trainer(options, ranks, First(GetParam()), Values());
      TrainSteps(trainer, rank, 7, 1, alone);
      alone.states = trainer.ReadStates();
    }
    {
      Trainer trainer(options, ranks, Later(GetParam()), Values(kFirstLater));
      for (int step = 3; step < 7; ++step) {
        // Scaled otherwise, to the same bits: powers of two are exact.
        trainer.Step(Waves(rank, step * 10, trainer.engine().LossScale(), kFirstLater));
      }
      fresh.states = trainer.ReadStates();
    }
    Trainer trainer(options, ranks, First(GetParam()), Values());
    Result result;
    TrainSteps(trainer, rank, 3, 1, result);
    ASSERT_TRUE(trainer.AddUnits(Later(GetParam()), Values()).ok());
    for (int step = 3; step < 7; ++step) {
      const StepStats stats = trainer.Step(Waves(rank, step * 10, trainer.engine().LossScale()));
      EXPECT_EQ(stats.step, step + 1);
      EXPECT_EQ(stats.loss_scale, alone.told[2 * step + 1]);  // grown when it would have
    }
    std::vector<float> of_first;
    std::vector<float> of_later;
    for (const StateKind state : {StateKind::kMaster, StateKind::kMoment1, StateKind::kMoment2}) {
      for (ParameterId id = 0; id < kFirstLater + 3; ++id) {
        const std::vector<float> values = trainer.Read(id, state);
        std::vector<float>& all = id < kFirstLater ? of_first : of_later;
        all.insert(all.end(), values.begin(), values.end());
      }
    }
    EXPECT_EQ(of_first, alone.states);
    EXPECT_EQ(of_later, fresh.states);
  });
}

// fp32 alone may sum in place; a 16-bit unit that comes later makes fp32 sums beside it.
TEST(AddUnits, OfAnotherDType) {
  RunStages({1, 2}, [](EngineOptions options, int rank, Communicator ranks) {
    options = Options(options);
    options.max_micro_batches = 3;
    Result expected;
    {
      Trainer trainer(options, ranks, Joined(First(), Later(DType::kBFloat16)), Values());
      TrainSteps(trainer, rank, 3, 3, expected);
      expected.states = trainer.ReadStates();
    }
    Trainer trainer(options, ranks, First(), Values());
    ASSERT_TRUE(trainer.AddUnits(Later(DType::kBFloat16), Values()).ok());
    Result result;
    TrainSteps(trainer, rank, 3, 3, result);
    EXPECT_EQ(trainer.ReadStates(), expected.states);
  });
}

// The same model, however it came.
TEST(AddUnits, OneByOneIsAllAtOnce) {
  RunStages({1, 3}, [](EngineOptions options, int rank, Communicator ranks) {
    options = Options(options);
    options.reproducible = true;  // several sums for each parameter
    const ModelSpec whole = Joined(First(), Later());
    Result expected;
    {
      Trainer trainer(options, ranks, whole, Values());
      TrainSteps(trainer, rank, 3, 2, expected);
      expected.states = trainer.ReadStates();
    }
    Trainer trainer(options, ranks, ModelSpec(), Values());  // a model of nothing grows too
    for (const UnitSpec& unit : whole.units) {
      ModelSpec one = {{}, {unit}};
      for (const ParameterSpec& spec : whole.parameters) {
        if (std::ranges::count(unit.parameters, spec.name) > 0) one.parameters.push_back(spec);
      }
      ASSERT_TRUE(trainer.AddUnits(one, Values()).ok());
    }
    ASSERT_TRUE(trainer.AddUnits({}, Values()).ok());
    Result result;
    TrainSteps(trainer, rank, 3, 2, result);
    EXPECT_EQ(trainer.ReadStates(), expected.states);
    EXPECT_EQ(result.told, expected.told);
  });
}

TEST(AddUnits, AddressesShapesAndNamesStay) {
  RunStages({1, 2}, [](const EngineOptions& options, int rank, Communicator ranks) {
    Trainer trainer(Options(options), ranks, First(), Values());
    Result result;
    TrainSteps(trainer, rank, 2, 1, result);
    Engine& engine = trainer.engine();
    std::vector<TensorView> before;
    for (ParameterId id = 0; id < kFirstLater; ++id) {
      before.push_back(engine.Parameter(id));
      before.push_back(engine.Gradient(id));
    }
    const std::vector<float> states = trainer.ReadStates();
    const std::vector<float> gradients = trainer.ReadAll(StateKind::kGradient);
    const int64_t elems = engine.TotalElements();
    ASSERT_TRUE(engine.AddUnits(Later().parameters, Later().units).ok());
    EXPECT_EQ(trainer.ReadStates(), states);
    EXPECT_EQ(trainer.ReadAll(StateKind::kGradient), gradients);
    for (ParameterId id = 0; id < kFirstLater; ++id) {
      for (const TensorView& view : {engine.Parameter(id), engine.Gradient(id)}) {
        const TensorView& old = before[2 * id + (view.data == engine.Gradient(id).data ? 1 : 0)];
        EXPECT_EQ(view.data, old.data);
        EXPECT_EQ(view.shape.data(), old.shape.data());
        EXPECT_EQ(view.shape.size(), old.shape.size());
      }
    }
    EXPECT_THAT(before[2].shape, ElementsAre(1000, 3));
    EXPECT_EQ(engine.TotalElements(), elems + 701 * 5 + 13 + 1);
    EXPECT_EQ(*engine.FindParameter("embedding"), 0);
    EXPECT_EQ(*engine.FindParameter("late.bias"), 5);
    EXPECT_EQ(*engine.FindUnit("late"), 2);
    EXPECT_THAT(engine.Parameter(4).shape, ElementsAre(701, 5));
    // What is new is zero until it is written.
    for (const StateKind state : {StateKind::kMaster, StateKind::kMoment2}) {
      EXPECT_THAT(trainer.Read(4, state), Each(0.0f));
    }
    EXPECT_EQ(engine.Step().status().code(), absl::StatusCode::kFailedPrecondition);
  });
}

// A later unit that uses a parameter of an old one: one sum, one update, the old step count.
TEST(AddUnits, ALaterUnitMayUseWhatIsThere) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.groups[0].learning_rate = 0.1;
    Trainer trainer(options, ranks, Tensors({100}), Constant(1));
    trainer.Step(Gradients({{0.5f}}));
    ASSERT_TRUE(trainer.AddUnits({{{"bias", {3}}}, {{"out", {"bias"}, {"a"}}}}, Constant(1)).ok());
    Engine& engine = trainer.engine();
    ASSERT_TRUE(engine.BeginMicroBatch().ok());
    ASSERT_TRUE(engine.Acquire(1, AcquireMode::kBackward).ok());
    for (float& element : trainer.Gradient(0)) element += 0.25f;
    for (float& element : trainer.Gradient(1)) element += 1.0f;
    ASSERT_TRUE(engine.GradReady(1).ok());
    ASSERT_TRUE(engine.Release(1).ok());
    trainer.Backward(0, Gradients({{0.25f}}));
    const StepStats stats = trainer.Step();
    EXPECT_NEAR(stats.grad_norm, std::sqrt(100 * 0.25 + 3), 1e-6);
    for (const float value : trainer.Read(0)) EXPECT_NEAR(value, 0.8, 1e-6);
    for (const float value : trainer.Read(1)) EXPECT_NEAR(value, 0.9, 1e-6);
  });
}

TEST(AddUnits, GroupsAreAppended) {
  RunStages({1, 2}, [](EngineOptions options, int, Communicator ranks) {
    options.groups[0].learning_rate = 0.1;
    Trainer trainer(options, ranks, Tensors({300}), Constant(1));
    trainer.Step(Gradients({{1}}));
    ASSERT_TRUE(trainer.engine().SetGroup(0, {.learning_rate = 0.2}).ok());  // and it stays set
    const ModelSpec late = {{{"b", {300}, DType::kFloat32, 1}, {"c", {300}, DType::kFloat32, 2}},
                            {{"late", {"b", "c"}, {}}}};
    EXPECT_EQ(trainer.engine().SetGroup(2, {}).code(), absl::StatusCode::kInvalidArgument);
    ASSERT_TRUE(
        trainer.AddUnits(late, Constant(1), {{.learning_rate = 0.3}, {.learning_rate = 0.4}}).ok());
    ASSERT_TRUE(trainer.engine().SetGroup(2, {.learning_rate = 0.5}).ok());
    EXPECT_NEAR(trainer.Step(Gradients({{1}, {1}, {1}})).learning_rate, 0.2, 1e-12);
    EXPECT_NEAR(trainer.Read(0)[299], 0.7, 1e-6);
    EXPECT_NEAR(trainer.Read(1)[299], 0.7, 1e-6);
    EXPECT_NEAR(trainer.Read(2)[299], 0.5, 1e-6);
  });
}

// The schedule goes on, and a unit that comes is at its beginning in steps alone.
TEST(AddUnits, TheScheduleGoesOn) {
  RunStages({2}, [](EngineOptions options, int, Communicator ranks) {
    options.schedule = {ScheduleKind::kLinear, 0, 10};
    options.groups[0].learning_rate = 0.1;
    Trainer trainer(options, ranks, Tensors({30}), Constant(1));
    for (int step = 0; step < 4; ++step) trainer.Step(Gradients({{1}}));
    ASSERT_TRUE(trainer.AddUnits({{{"late", {30}}}, {{"later", {"late"}, {}}}}, Constant(1)).ok());
    EXPECT_NEAR(trainer.Step(Gradients({{1}, {1}})).learning_rate, 0.05, 1e-12);
    EXPECT_NEAR(trainer.Read(1)[0], 0.95, 1e-6);
  });
}

}  // namespace
}  // namespace zerohold::testing
