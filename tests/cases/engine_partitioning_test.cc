// Partitioning that others got wrong, by the ids of the cases: sizes that divide nothing, empty,
// absent, tied and differing tensors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

#include "tests/support/ranks.h"
#include "tests/support/toy9.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Text(const Status& status) { return std::string(status.message()); }

// More ranks than tensors, and than blocks.
TEST(PartitioningCases, PAR_02) {
  const auto train = [](const EngineOptions& options, const Communicator& ranks) {
    Trainer trainer(options, ranks, Tensors({5, 2}), Constant(1));
    for (int step = 0; step < 3; ++step) {
      trainer.Step(Gradients({{1, -2, 3, -4, 5}, {0.5f, -0.25f}}));
    }
    return trainer.ReadStates();
  };
  const std::vector<float> expected = train(OptionsOfStage(0), SelfCommunicator());
  RunStages({2, 5, 8}, [&](const EngineOptions& options, int, Communicator ranks) {
    const std::vector<float> states = train(options, ranks);
    ASSERT_EQ(states.size(), expected.size());
    for (size_t i = 0; i < states.size(); ++i) EXPECT_NEAR(states[i], expected[i], 1e-7);
  });
}

// An empty tensor keeps its name and its shape, and takes part.
TEST(PartitioningCases, PAR_04) {
  RunStages({1, 2, 3}, [](const EngineOptions& options, int, Communicator ranks) {
    const ModelSpec model = {{{"first", {8}}, {"empty", {0, 8}}, {"last", {24}}},
                             {{"all", {"first", "empty", "last"}, {}}}};
    Trainer trainer(options, ranks, model, Constant(1));
    Engine& engine = trainer.engine();
    const StatusOr<ParameterId> empty = engine.FindParameter("empty");
    ASSERT_TRUE(empty.ok());
    EXPECT_THAT(engine.Parameter(*empty).shape, ElementsAre(0, 8));
    EXPECT_THAT(engine.Gradient(*empty).shape, ElementsAre(0, 8));
    EXPECT_EQ(engine.Parameter(*empty).elems, 0);
    EXPECT_THAT(engine.Parameter(*engine.FindParameter("first")).shape, ElementsAre(8));
    EXPECT_THAT(engine.Parameter(*engine.FindParameter("last")).shape, ElementsAre(24));
    EXPECT_EQ(engine.TotalElements(), 32);
    EXPECT_TRUE(trainer.Step(Gradients({{1}, {}, {1}})).applied);
    EXPECT_TRUE(trainer.Read(*empty, StateKind::kMoment1).empty());
  });
}

// What is split over the ranks comes back bit for bit, whole and in parts.
TEST(PartitioningCases, PAR_06) {
  const ModelSpec small = {{{"a", {7}}, {"b", {5, 3}}, {"c", {1}}, {"d", {11}}},
                           {{"all", {"a", "b", "c", "d"}, {}}}};
  // The same shapes, large enough that every rank has a part of several buckets.
  const ModelSpec large = {
      {{"a", {7, 97}}, {"b", {5, 3, 131}}, {"c", {1}}, {"d", {11, 89}}, {"e", {3001}}},
      {{"front", {"a", "b"}, {}}, {"back", {"e", "c", "d"}, {}}}};
  RunStages({1, 2, 3, 4, 5, 6, 7, 8}, [&](EngineOptions options, int, Communicator ranks) {
    options.bucket_elems = 1024;
    options.record_elems = 512;
    for (const ModelSpec& model : {small, large}) {
      Trainer trainer(options, ranks, model, Constant(0));
      float index = 0;
      for (size_t i = 0; i < model.parameters.size(); ++i) {
        const auto id = static_cast<ParameterId>(i);
        std::vector<float> values(trainer.Values(id).size());
        for (float& value : values) value = index++;
        for (const StateKind state :
             {StateKind::kMaster, StateKind::kMoment1, StateKind::kMoment2}) {
          ASSERT_TRUE(trainer.engine().Write(id, state, 0, values).ok());
          EXPECT_EQ(trainer.Read(id, state), values);
          if (values.size() < 2) continue;
          std::vector<float> inner(values.size() - 2);
          ASSERT_TRUE(trainer.engine().Read(id, state, 1, inner).ok());
          EXPECT_TRUE(std::equal(inner.begin(), inner.end(), values.begin() + 1));
        }
      }
      std::vector<float> all(trainer.engine().TotalElements());
      std::iota(all.begin(), all.end(), 0.0f);
      EXPECT_EQ(trainer.ReadAll(StateKind::kMoment1), all);  // no write has touched a neighbour
      EXPECT_EQ(trainer.ReadAll(StateKind::kMoment2), all);
      EXPECT_EQ(trainer.ReadAll(), all);
    }
  });
}

// A unit that one rank reports counts as zero on the others; nobody hangs.
TEST(PartitioningCases, PAR_10) {
  RunStages({2}, [](const EngineOptions& options, int rank, Communicator ranks) {
    Trainer trainer(options, ranks, TensorsInUnits({3, 300}), Constant(1));
    // A gradient of an earlier step must not come back.
    trainer.Step(Gradients({{100}, {100}}));
    for (const ParameterId id : {0, 1}) {
      const std::vector<float> zeros(trainer.Values(id).size(), 0.0f);
      ASSERT_TRUE(trainer.engine().Write(id, StateKind::kMoment1, 0, zeros).ok());
    }
    const StepStats stats =
        rank == 0 ? trainer.Step(Gradients({{4}, {1}})) : trainer.Step(Gradients({{}, {1}}), {1});
    EXPECT_TRUE(stats.applied);
    for (const float value : trainer.Read(0, StateKind::kGradient)) EXPECT_EQ(value, 2.0f);
    for (const float value : trainer.Read(0, StateKind::kMoment1)) EXPECT_NEAR(value, 0.2, 1e-6);
    for (const float value : trainer.Read(1, StateKind::kMoment1)) EXPECT_NEAR(value, 0.1, 1e-6);
  });
}

// Also where gradients have room for two units alone, and a rank leaves out any part of the list.
TEST(PartitioningCases, PAR_10_InTightRoom) {
  const ModelSpec model = TensorsInUnits({1000, 1000, 1000, 1000, 1000});
  for (const UnitId from : {1, 3, 5}) {
    std::vector<std::vector<float>> states;
    for (const int stage : {0, 1, 2, 3}) {
      RunRanks(2, [&](int rank, const Communicator& ranks) {
        EngineOptions options = OptionsOfStage(stage);
        options.bucket_elems = 1024;
        options.communication_timeout_s = 20;
        Trainer trainer(options, ranks, model, Constant(1));
        ASSERT_TRUE(trainer.engine().BeginMicroBatch().ok());
        for (UnitId unit = 4; unit >= 0; --unit) {
          if (rank == 1 || unit >= from) {
            trainer.Backward(unit, Gradients({{1}, {2}, {3}, {4}, {5}}));
            continue;
          }
          ASSERT_TRUE(trainer.engine().Acquire(unit, AcquireMode::kForward).ok());
          ASSERT_TRUE(trainer.engine().GradAbsent(unit).ok());
          ASSERT_TRUE(trainer.engine().Release(unit).ok());
        }
        EXPECT_TRUE(trainer.Step().applied);
        for (UnitId unit = 0; unit < 5; ++unit) {
          const float mean = static_cast<float>(unit + 1) / (unit < from ? 2.0f : 1.0f);
          EXPECT_EQ(trainer.Read(unit, StateKind::kGradient)[0], mean);
        }
        const std::vector<float> mine = trainer.ReadStates();
        if (rank == 0) states.push_back(mine);
      });
    }
    for (const std::vector<float>& other : states) EXPECT_EQ(other, states[0]);
  }
}

// A rank without any unit takes part too.
TEST(PartitioningCases, PAR_10_ARankWithoutAnyGradient) {
  RunStages({2, 3}, [](const EngineOptions& options, int rank, Communicator ranks) {
    Trainer trainer(options, ranks, TensorsInUnits({3, 300}), Constant(1));
    ASSERT_TRUE(trainer.engine().BeginMicroBatch().ok());
    if (rank == 0) {
      trainer.Backward(1, Gradients({{}, {6}}));
      trainer.Backward(0, Gradients({{6}, {}}));
    }
    EXPECT_TRUE(trainer.Step().applied);
    const float mean = 6.0f / static_cast<float>(ranks.size());
    for (const float value : trainer.ReadAll(StateKind::kGradient)) EXPECT_EQ(value, mean);
  });
}

// Groups with equal settings are one group: the same bits. (Cut into other tensors, the nine
// elements lie elsewhere in the norm's blocks, so that is another model and may differ by a bit.)
TEST(PartitioningCases, PAR_12) {
  using Grouping = int (*)(int element);
  const Grouping two = [](int element) { return element < 5 ? 0 : 1; };
  const Grouping nine = [](int element) { return element; };
  const auto regrouped = [](ModelSpec model, Grouping group) {
    int element = 0;
    for (ParameterSpec& spec : model.parameters) {
      spec.group = group(element);
      element += static_cast<int>(spec.shape[0]);
    }
    return model;
  };
  RunStages({3}, [&](EngineOptions options, int, Communicator ranks) {
    options = Toy9::Options(options);
    options.groups.assign(9, {.learning_rate = 0.05});
    for (const ModelSpec& model : {Toy9::Model(), Tensors({1, 1, 1, 1, 1, 1, 1, 1, 1})}) {
      const ModelSpec one = regrouped(model, [](int) { return 0; });
      const std::vector<float> expected = Toy9::Train(options, ranks, one, 1).values;
      for (const Grouping grouping : {two, nine}) {
        EXPECT_EQ(Toy9::Train(options, ranks, regrouped(model, grouping), 1).values, expected);
      }
    }
  });
}

// A group that comes after three steps of another one is split, updated, and starts at step 1.
TEST(PartitioningCases, PAR_14) {
  RunStages({2}, [](EngineOptions options, int, Communicator ranks) {
    options.groups[0].learning_rate = 0.1;
    for (const int64_t size : {1, 3000}) {
      Trainer trainer(options, ranks, Tensors({size}), Constant(1));
      for (int step = 0; step < 3; ++step) trainer.Step(Gradients({{0.5f}}));
      const std::vector<float> before = trainer.ReadStates();
      const ModelSpec late = {{{"late", {size}, DType::kFloat32, 1}}, {{"later", {"late"}, {}}}};
      ASSERT_TRUE(trainer.AddUnits(late, Constant(1), {{.learning_rate = 0.1}}).ok());
      EXPECT_EQ(trainer.Read(0), std::vector<float>(before.begin(), before.begin() + size));
      const StepStats stats = trainer.Step(Gradients({{0.5f}, {0.5f}}));
      EXPECT_EQ(stats.step, 4);
      EXPECT_NEAR(stats.grad_norm, 0.5 * std::sqrt(2.0 * size), 1e-4);
      for (const float value : trainer.Read(1)) EXPECT_NEAR(value, 0.9, 1e-6);
      for (const float value : trainer.Read(0)) EXPECT_NEAR(value, 0.6, 1e-6);
      for (const float value : trainer.Read(1, StateKind::kMoment1)) EXPECT_NEAR(value, 0.05, 1e-6);
    }
  });
}

// Runs Create with a list that the last rank changes, and returns what each rank is told.
std::vector<Status> CreateWith(int world, const ModelSpec& model,
                               const std::function<void(ModelSpec&)>& change) {
  std::vector<Status> told(world);
  const auto begin = std::chrono::steady_clock::now();
  RunRanks(world, [&](int rank, const Communicator& ranks) {
    ModelSpec mine = model;
    if (rank == world - 1) change(mine);
    told[rank] = Engine::Create(OptionsOfStage(1), {ranks}, mine.parameters, mine.units).status();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  for (const Status& status : told) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(status, told[0]);
  }
  return told;
}

TEST(PartitioningCases, PAR_16) {
  const ModelSpec model = {{{"alpha", {5}}, {"beta", {5}}, {"gamma", {2}}},
                           {{"all", {"alpha", "beta", "gamma"}, {}}}};
  for (const int world : {2, 3, 4}) {
    const std::string last = "rank " + std::to_string(world - 1);
    const auto has = [&](const std::string& first, const std::string& other) {
      return AllOf(HasSubstr("rank 0 has"), HasSubstr(last + " has"), HasSubstr(first),
                   HasSubstr(other));
    };
    EXPECT_THAT(Text(CreateWith(
                    world, model,
                    [](ModelSpec& mine) { std::swap(mine.parameters[0], mine.parameters[1]); })[0]),
                has("alpha", "beta"));
    EXPECT_THAT(Text(CreateWith(world, model,
                                [](ModelSpec& mine) {
                                  mine.parameters.pop_back();
                                  mine.units[0].parameters.pop_back();
                                })[0]),
                has("gamma", "unit 0"));
    EXPECT_THAT(Text(CreateWith(world, model,
                                [](ModelSpec& mine) {
                                  mine.parameters[1].shape = {5, 1};
                                })[0]),
                has("\"beta\" [5]", "\"beta\" [5, 1]"));
    EXPECT_THAT(Text(CreateWith(world, model,
                                [](ModelSpec& mine) { mine.parameters[2].frozen = true; })[0]),
                has("gamma", "frozen"));
    EXPECT_THAT(Text(CreateWith(world, model,
                                [](ModelSpec& mine) { mine.parameters[2].norm_weight = 0.5; })[0]),
                has("norm_weight 1", "norm_weight 0.5"));
    EXPECT_THAT(Text(CreateWith(world, model,
                                [](ModelSpec& mine) {
                                  std::swap(mine.units[0].parameters[0],
                                            mine.units[0].parameters[1]);
                                })[0]),
                has("holds \"alpha\" \"beta\"", "holds \"beta\" \"alpha\""));
  }
}

// Every view begins at a multiple of 64 bytes, and its values are its own.
TEST(PartitioningCases, PAR_18) {
  RunStages({1, 2, 3}, [](const EngineOptions& options, int, Communicator ranks) {
    const auto value = [](ParameterId id, int64_t i) { return static_cast<float>(100 * id + i); };
    for (const ModelSpec& model : {Tensors({1, 3, 5, 7}), TensorsInUnits({1, 3, 5, 7})}) {
      Trainer trainer(options, ranks, model, value);
      for (ParameterId id = 0; id < 4; ++id) {
        EXPECT_EQ(reinterpret_cast<uintptr_t>(trainer.Values(id).data()) % 64, 0u);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(trainer.Gradient(id).data()) % 64, 0u);
        const std::vector<float> values = trainer.Read(id);
        for (size_t i = 0; i < values.size(); ++i) {
          EXPECT_EQ(values[i], value(id, static_cast<int64_t>(i)));
        }
      }
    }
  });
}

// A tied weight is stored once, counted once, and updated once with the sum of its two gradients.
TEST(PartitioningCases, PAR_20) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.groups[0].learning_rate = 0.1;
    const ModelSpec model = {
        {{"table", {100}}, {"middle", {10}}},
        {{"in", {"table"}, {}}, {"body", {"middle"}, {}}, {"out", {}, {"table"}}}};
    Trainer trainer(options, ranks, model, Constant(1));
    Engine& engine = trainer.engine();
    EXPECT_EQ(engine.TotalElements(), 110);
    ASSERT_TRUE(engine.BeginMicroBatch().ok());
    ASSERT_TRUE(engine.Acquire(2, AcquireMode::kBackward).ok());
    for (float& element : trainer.Gradient(0)) element += 0.75f;
    ASSERT_TRUE(engine.GradReady(2).ok());
    ASSERT_TRUE(engine.Release(2).ok());
    trainer.Backward(1, Gradients({{}, {1}}));
    trainer.Backward(0, Gradients({{0.25f}, {}}));
    const StepStats stats = trainer.Step();
    EXPECT_NEAR(stats.grad_norm, std::sqrt(110.0), 1e-6);
    for (const float value : trainer.Read(0)) EXPECT_NEAR(value, 0.9, 1e-6);
    for (const float value : trainer.Read(0, StateKind::kMoment1)) EXPECT_NEAR(value, 0.1, 1e-6);
  });
}

// A user of the tied weight that reports alone, in one micro-batch of two.
TEST(PartitioningCases, PAR_20_OnlyTheUserReports) {
  RunStages({1, 2}, [](const EngineOptions& options, int, Communicator ranks) {
    const ModelSpec model = {{{"table", {100}}}, {{"in", {"table"}, {}}, {"out", {}, {"table"}}}};
    Trainer trainer(options, ranks, model, Constant(1));
    for (const bool last : {false, true}) {
      ASSERT_TRUE(trainer.engine().BeginMicroBatch(1.0, last).ok());
      ASSERT_TRUE(trainer.engine().Acquire(1, AcquireMode::kBackward).ok());
      if (last) trainer.Gradient(0)[99] += 3.0f;
      ASSERT_TRUE(trainer.engine().GradReady(1).ok());
      ASSERT_TRUE(trainer.engine().Release(1).ok());
    }
    EXPECT_TRUE(trainer.Step().applied);
    const std::vector<float> gradient = trainer.Read(0, StateKind::kGradient);
    EXPECT_EQ(gradient[98], 0.0f);
    EXPECT_EQ(gradient[99], 1.5f);
  });
}

}  // namespace
}  // namespace zerohold::testing
