// Several communicators: experts and other parameters that only some ranks hold; the norm and the
// verdict are of all ranks. And parameters that one rank owns as a whole.
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <mutex>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

constexpr int kWorld = 4;

// Ranks 0 and 2 hold one expert, 1 and 3 the other; all hold the rest. `body` gets the
// communicators of both kinds.
void RunPairs(const std::function<void(int rank, std::vector<Communicator>)>& body) {
  const std::vector<std::vector<Communicator>> pairs = {ThreadCommunicators(2),
                                                        ThreadCommunicators(2)};
  RunRanks(kWorld, [&](int rank, const Communicator& all) {
    body(rank, {all, pairs[rank % 2][rank / 2]});
  });
}

ModelSpec WithExpert(const std::string& expert) {
  ModelSpec model{{{"dense", {3000}}, {"gate", {5}}, {expert, {700}}},
                  {{"block", {"dense", "gate"}, {}}, {"experts", {expert}, {}}}};
  model.parameters[2].communicator = 1;
  model.parameters[2].mean_ranks = kWorld;
  return model;
}

EngineOptions Options(int stage) {
  EngineOptions options = OptionsOfStage(stage);
  options.groups[0].weight_decay = 0.1;
  options.clip_grad_norm = 0.5;
  options.bucket_elems = 512;
  return options;
}

// Small integers over 64: sums of any order are exact.
float Exact(int64_t seed, int64_t i) {
  return static_cast<float>((seed * 7 + i * 5) % 31 - 15) / 64;
}

// What each rank adds, by parameter of the whole model: dense, gate, even expert, odd expert.
float GradientOf(int parameter, int rank, int step, int64_t i) {
  return Exact(parameter * 11 + rank * 3 + step, i);
}

GradientFunction OfRank(int rank, int step) {
  return [=](ParameterId id, std::span<const float>, std::span<float> gradient) {
    const int parameter = id < 2 ? id : 2 + rank % 2;
    for (size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] += GradientOf(parameter, rank, step, static_cast<int64_t>(i));
    }
  };
}

ValueFunction FirstOf(int rank) {
  return [=](ParameterId id, int64_t i) { return Exact(100 + (id < 2 ? id : 2 + rank % 2), i); };
}

// One rank that holds everything and is given the mean.
std::vector<std::vector<float>> Reference(int steps, std::vector<double>* norms) {
  ModelSpec model{{{"dense", {3000}}, {"gate", {5}}, {"even", {700}}, {"odd", {700}}},
                  {{"block", {"dense", "gate"}, {}}, {"even", {"even"}, {}}, {"odd", {"odd"}, {}}}};
  Trainer trainer(Options(0), SelfCommunicator(), model,
                  [](ParameterId id, int64_t i) { return Exact(100 + id, i); });
  for (int step = 0; step < steps; ++step) {
    const auto mean = [step](ParameterId id, std::span<const float>, std::span<float> gradient) {
      for (size_t i = 0; i < gradient.size(); ++i) {
        for (int rank = 0; rank < kWorld; ++rank) {
          if (id < 2 || id == 2 + rank % 2) {
            gradient[i] += GradientOf(id, rank, step, static_cast<int64_t>(i)) / kWorld;
          }
        }
      }
    };
    norms->push_back(trainer.Step(mean).grad_norm);
  }
  return {trainer.Read(0), trainer.Read(1), trainer.Read(2), trainer.Read(3)};
}

TEST(Communicators, ExpertsAreReducedOverTheirRanksAndTheNormOverAll) {
  constexpr int kSteps = 3;
  std::vector<double> norms;
  const std::vector<std::vector<float>> expected = Reference(kSteps, &norms);
  for (const int stage : {0, 1, 2, 3}) {
    RunPairs([&](int rank, const std::vector<Communicator>& communicators) {
      SCOPED_TRACE(absl::StrCat("stage ", stage, ", rank ", rank));
      const std::string expert = rank % 2 == 0 ? "even" : "odd";
      Trainer trainer(Options(stage), communicators, WithExpert(expert), FirstOf(rank));
      for (int step = 0; step < kSteps; ++step) {
        EXPECT_EQ(trainer.Step(OfRank(rank, step)).grad_norm, norms[step]);
      }
      EXPECT_EQ(trainer.Read(0), expected[0]);
      EXPECT_EQ(trainer.Read(1), expected[1]);
      EXPECT_EQ(trainer.Read(2), expected[2 + rank % 2]);
      EXPECT_TRUE(trainer.engine().Close().ok());
    });
  }
}

TEST(Communicators, MeansGoOverTheRanksOfTheirOwn) {
  for (const int stage : {0, 1, 2, 3}) {
    RunPairs([&](int rank, const std::vector<Communicator>& communicators) {
      ModelSpec model = WithExpert("expert");
      model.parameters[2].mean_ranks = 0;
      EngineOptions options = Options(stage);
      options.clip_grad_norm = 0.0;
      Trainer trainer(options, communicators, model, Constant(0.0f));
      const auto r = static_cast<float>(rank);
      trainer.Step(Gradients({{r}, {r}, {r}}));
      EXPECT_EQ(trainer.Read(0, StateKind::kGradient)[7], 1.5f);
      EXPECT_EQ(trainer.Read(2, StateKind::kGradient)[7], rank % 2 == 0 ? 1.0f : 2.0f);
    });
  }
}

// Weights of the same ranks count in each group by themselves.
TEST(Communicators, WeightedMeans) {
  for (const int stage : {0, 1, 2, 3}) {
    RunPairs([&](int rank, const std::vector<Communicator>& communicators) {
      ModelSpec model = WithExpert("expert");
      model.parameters[2].mean_ranks = 0;
      EngineOptions options = Options(stage);
      options.clip_grad_norm = 0.0;
      options.reduction = GradientReduction::kWeightedMean;
      Trainer trainer(options, communicators, model, Constant(0.0f));
      for (int step = 0; step < 2; ++step) {
        ASSERT_TRUE(trainer.engine().BeginMicroBatch(rank + 1.0).ok());
        const auto r = static_cast<float>(rank);
        for (const UnitId unit : {1, 0}) trainer.Backward(unit, Gradients({{r}, {r}, {r}}));
        trainer.Step();
        EXPECT_EQ(trainer.Read(0, StateKind::kGradient)[7], 2.0f);  // (0 + 2 + 6 + 12) / 10
        EXPECT_EQ(trainer.Read(2, StateKind::kGradient)[7],
                  rank % 2 == 0 ? 6.0f / 4 : 14.0f / 6);  // (0 + 6) / 4, (2 + 12) / 6
      }
    });
  }
}

// A tensor-parallel pair holds halves of one matrix and copies of one bias; nothing is held by all.
TEST(Communicators, ReplicasCountOnceInTheNorm) {
  for (const int stage : {0, 1, 2, 3}) {
    RunPairs([&](int, const std::vector<Communicator>& communicators) {
      ModelSpec model{{{"half", {16}}, {"bias", {9}}}, {{"layer", {"half", "bias"}, {}}}};
      for (ParameterSpec& parameter : model.parameters) parameter.communicator = 1;
      model.parameters[1].norm_weight = 0.5;
      Trainer trainer(Options(stage), communicators, model, Constant(0.0f));
      EXPECT_DOUBLE_EQ(trainer.Step(Gradients({{1.0f}, {2.0f}})).grad_norm,
                       std::sqrt(2 * 16.0 + 9 * 4.0));
    });
  }
}

// An expert that got no token keeps its values and its own step count; the other one goes on.
TEST(Communicators, AnExpertWithoutTokensIsAbsentForItsRanksAlone) {
  for (const int stage : {0, 1, 2, 3}) {
    RunPairs([&](int rank, const std::vector<Communicator>& communicators) {
      SCOPED_TRACE(absl::StrCat("stage ", stage, ", rank ", rank));
      const bool odd = rank % 2 == 1;
      EngineOptions options = Options(stage);
      options.groups[0] = {.learning_rate = 0.1};
      options.clip_grad_norm = 0.0;
      Trainer trainer(options, communicators, WithExpert("expert"), Constant(1.0f));
      const GradientFunction half = Gradients({{0.5f}, {0.5f}, {1.0f}});
      trainer.Step(half, odd ? std::vector<UnitId>{0} : std::vector<UnitId>{0, 1});
      EXPECT_FLOAT_EQ(trainer.Read(0)[0], 0.9f);
      EXPECT_FLOAT_EQ(trainer.Read(2)[0], odd ? 1.0f : 0.9f);
      trainer.Step(half);
      EXPECT_FLOAT_EQ(trainer.Read(2)[0], odd ? 0.9f : 0.8f) << "its own first step";
      // No other rank's reports are needed: a step of the odd expert alone.
      trainer.engine().BeginMicroBatch().IgnoreError();
      if (odd) trainer.Backward(1, half);
      trainer.Step();
      EXPECT_FLOAT_EQ(trainer.Read(0)[0], 0.8f);
      EXPECT_FLOAT_EQ(trainer.Read(2)[0], 0.8f);
    });
  }
}

TEST(Communicators, WhatAFewRanksHaveAgainstAStepAllHear) {
  for (const int stage : {0, 1, 2, 3}) {
    RunPairs([&](int rank, const std::vector<Communicator>& communicators) {
      SCOPED_TRACE(absl::StrCat("stage ", stage, ", rank ", rank));
      Trainer trainer(Options(stage), communicators, WithExpert("expert"), FirstOf(rank));
      trainer.Step(OfRank(rank, 0));
      const std::vector<float> before = trainer.ReadStates();
      // Only one expert is not finite.
      const auto infinite = [&](ParameterId id, std::span<const float>, std::span<float> gradient) {
        const bool mine = id == 2 && rank == 3;
        for (float& g : gradient) g = mine ? std::numeric_limits<float>::infinity() : 1.0f;
      };
      EXPECT_FALSE(trainer.Step(infinite).applied);
      EXPECT_EQ(trainer.ReadStates(), before);
      // Two ranks that share an expert wrote different values to it.
      trainer.WriteUnit(1, Constant(rank == 3 ? 2.0f : 1.0f));
      trainer.MicroBatch(OfRank(rank, 1));
      const Status refused = trainer.engine().Step().status();
      EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
      EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("unit experts"));
    });
  }
}

TEST(Communicators, CreateComparesWhatRanksShare) {
  RunPairs([&](int rank, const std::vector<Communicator>& communicators) {
    const auto refused = [&](const ModelSpec& model) {
      return Engine::Create(Options(1), communicators, model.parameters, model.units).status();
    };
    // Other names where others hold them are legal; see the first test. Not within a pair.
    const Status names = refused(WithExpert(rank == 3 ? "three" : "expert"));
    EXPECT_TRUE(absl::IsFailedPrecondition(names)) << names;
    EXPECT_THAT(std::string(names.message()), ::testing::HasSubstr("three"));
    // What uses an expert may differ, unless half the ranks would reduce the gate before the dense
    // block and the others after it.
    for (const bool apart : {false, true}) {
      const UnitSpec user = {rank % 2 == 0 ? "even" : "odd", {}, {"expert"}};
      ModelSpec tied = WithExpert("expert");
      tied.units = {user, {"block", {"dense"}, {}}, {"experts", {"gate", "expert"}, {}}};
      if (apart && rank % 2 == 1) std::swap(tied.units[0], tied.units[1]);
      const Status order = refused(tied);
      EXPECT_EQ(absl::IsFailedPrecondition(order), apart) << order;
      EXPECT_EQ(order.ok(), !apart);
      if (!apart) continue;
      EXPECT_THAT(std::string(order.message()),
                  ::testing::HasSubstr("reduced in the order \"block\" \"experts\""));
    }
    ModelSpec unknown = WithExpert("expert");
    unknown.parameters[2].communicator = 2;
    const Status index = refused(unknown);
    EXPECT_TRUE(absl::IsInvalidArgument(index)) << index;
    EXPECT_THAT(std::string(index.message()), ::testing::HasSubstr("has communicator 2, but 2"));
  });
}

// Rank 0 shares one communicator with rank 1 and another with rank 2. What two of them disagree on
// all hear, also those that compare something else meanwhile.
TEST(Communicators, ADifferenceBetweenTwoRanksIsToldToAll) {
  const std::vector<Communicator> first_pair = ThreadCommunicators(2);
  const std::vector<Communicator> second_pair = ThreadCommunicators(2);
  RunRanks(3, [&](int rank, const Communicator& all) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    const std::vector<Communicator> communicators = {
        all, rank < 2 ? first_pair[rank] : SelfCommunicator(),
        rank == 1 ? SelfCommunicator() : second_pair[rank / 2]};
    EngineOptions options = Options(1);
    options.communication_timeout_s = 5;
    // One parameter over each communicator; those that the first pair shares have other names.
    const auto model = [](const std::string& name, int64_t elems) {
      ModelSpec spec;
      for (int i = 0; i < 3; ++i) {
        const std::string full_name = absl::StrCat(i == 1 ? name : "same", ".", i, ".", elems);
        spec.parameters.push_back({full_name, {elems}});
        spec.parameters.back().communicator = i;
        spec.units.push_back({"unit." + full_name, {full_name}, {}});
      }
      return spec;
    };
    const auto expect_told = [](const Status& status) {
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("other.1"));
    };
    const std::string name = rank == 1 ? "other" : "same";
    const ModelSpec differs = model(name, 300);
    expect_told(Engine::Create(options, communicators, differs.parameters, differs.units).status());
    Trainer trainer(options, communicators, model("same", 300), Constant(1));
    expect_told(trainer.AddUnits(model(name, 40), Constant(1)));
    EXPECT_TRUE(trainer.Step(Gradients({{1}, {1}, {1}})).applied);
  });
}

// A record of an expert that one rank cannot store: its two ranks know, the others hear of it in
// the next step.
TEST(Communicators, ARecordThatAFewRanksLostEndsTheNextStepOnAll) {
  RunPairs([](int rank, const std::vector<Communicator>& communicators) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    EngineOptions options = Options(1);
    options.communication_timeout_s = 5;
    options.offload.nvme_paths = {std::filesystem::current_path()};
    if (rank == 3) options.offload.faults = "eio=1";
    Trainer trainer(options, communicators, WithExpert("expert"), Constant(1));
    const std::vector<float> values(700, 0.5f);
    if (rank % 2 == 1) {
      const Status lost = trainer.engine().Write(2, StateKind::kMoment1, 0, values);
      EXPECT_THAT(std::string(lost.message()), ::testing::HasSubstr("Input/output error")) << lost;
    }
    const Status failed = trainer.TryStep(OfRank(rank, 0)).status();
    EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr("Input/output error"))
        << failed;
    EXPECT_EQ(trainer.engine().Step().status(), failed) << "it stays failed";
  });
}

// Room that holds all units on one rank and two on another: what they share is gathered alike.
// Of a unit with parameters of both kinds, which is in its frame: what some ranks write to theirs
// makes no rank gather alone.
TEST(Communicators, AWriteByAFewRanksToAUnitThatAllHold) {
  RunPairs([](int rank, const std::vector<Communicator>& communicators) {
    EngineOptions options = Options(3);
    options.communication_timeout_s = 10;
    ModelSpec model = WithExpert("expert" + std::to_string(rank % 2));
    model.units = {{"mixed", {"dense", model.parameters[2].name, "gate"}, {}}};
    Trainer trainer(options, communicators, model, FirstOf(rank));
    Engine& engine = trainer.engine();
    const std::vector<float> values(700, 0.25f);
    for (const StateKind state : {StateKind::kMaster, StateKind::kMoment2}) {
      if (rank % 2 == 1) {
        const Status written = engine.Write(2, state, 0, values);
        EXPECT_TRUE(written.ok()) << written;
      }
      const Status acquired = engine.Acquire(0, AcquireMode::kEvaluate);
      ASSERT_TRUE(acquired.ok()) << acquired;
      const float expected = rank % 2 == 1 ? 0.25f : FirstOf(rank)(2, 699);
      EXPECT_EQ(trainer.Values(2)[699], expected);
      EXPECT_EQ(trainer.Values(0)[7], FirstOf(rank)(0, 7));
      EXPECT_TRUE(engine.Release(0).ok());
    }
    trainer.Step(OfRank(rank, 0));
  });
}

// A unit's shard of an expert is lost on one rank: those of its other parameters hear of it too, in
// the gather or at the end.
TEST(Communicators, AShardThatOneRankCannotReadLeavesNobodyWaiting) {
  RunPairs([](int rank, const std::vector<Communicator>& communicators) {
    EngineOptions options = Options(3);
    options.communication_timeout_s = 60;
    options.offload.nvme_paths = {std::filesystem::current_path()};
    options.offload.host.parameters = 0;
    if (rank == 0) options.offload.faults = "eio=1,first=60";
    ModelSpec model = WithExpert("expert" + std::to_string(rank % 2));
    model.units = {{"mixed", {model.parameters[2].name, "dense", "gate"}, {}}};
    const auto begin = std::chrono::steady_clock::now();
    Trainer trainer(options, communicators, model, FirstOf(rank));
    Status status;
    for (int step = 0; step < 50 && status.ok(); ++step) {
      status = trainer.TryStep(OfRank(rank, step)).status();
    }
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("rank 0"));
    EXPECT_FALSE(trainer.engine().Close().ok());
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
  });
}

TEST(Communicators, ExpertsOfOtherSizesInTightFrames) {
  std::vector<float> expected;
  std::mutex mutex;
  for (const int stage : {0, 3}) {
    RunPairs([&](int rank, const std::vector<Communicator>& communicators) {
      SCOPED_TRACE(absl::StrCat("stage ", stage, ", rank ", rank));
      ModelSpec model = TensorsInUnits({4000, 3000, 2000, 1000, rank % 2 == 0 ? 100 : 1500000});
      model.parameters[4].communicator = 1;
      model.units.pop_back();
      model.units[3].parameters.push_back("e");
      const auto gradient = [&](ParameterId id, std::span<const float>, std::span<float> sums) {
        for (size_t i = 0; i < sums.size(); ++i) {
          sums[i] += Exact(id * 11 + (id < 4 ? rank : 0), static_cast<int64_t>(i));
        }
      };
      EngineOptions options = Options(stage);
      options.clip_grad_norm = 0.0;
      Trainer trainer(options, communicators, model, Constant(1.0f));
      for (int step = 0; step < 2; ++step) {
        ASSERT_TRUE(trainer.engine().BeginMicroBatch().ok());
        for (UnitId unit = 0; unit < 4; ++unit) {
          ASSERT_TRUE(trainer.engine().Acquire(unit, AcquireMode::kForward).ok());
          ASSERT_TRUE(trainer.engine().Release(unit).ok());
        }
        for (UnitId unit = 3; unit >= 0; --unit) trainer.Backward(unit, gradient);
        trainer.Step();
      }
      std::vector<float> dense;
      for (const ParameterId id : {0, 1, 2, 3}) {
        const std::vector<float> one = trainer.Read(id);
        dense.insert(dense.end(), one.begin(), one.end());
      }
      const std::lock_guard lock(mutex);
      if (expected.empty()) expected = dense;
      EXPECT_EQ(dense, expected);
    });
  }
}

TEST(Communicators, AUnitThatComesInFramesOnSomeRanksAloneIsRefused) {
  RunPairs([&](int rank, const std::vector<Communicator>& communicators) {
    EngineOptions options = Options(3);
    options.persistence_threshold_elems = 5000;
    ModelSpec model{{{"dense", {3000}}, {"expert", {rank % 2 == 0 ? 100 : 9000}}},
                    {{"block", {"dense", "expert"}, {}}}};
    model.parameters[1].communicator = 1;
    const auto create = [&] {
      return Engine::Create(options, communicators, model.parameters, model.units).status();
    };
    const Status refused = create();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                ::testing::AllOf(::testing::HasSubstr("persistence_threshold_elems"),
                                 ::testing::HasSubstr("block")));
    // Nothing that is shared is in frames: they may differ.
    model.units = {{"block", {"dense"}, {}}, {"experts", {"expert"}, {}}};
    const Status created = create();
    EXPECT_TRUE(created.ok()) << created;
  });
}

// Owned by one rank or cut over all: element-wise rules give the same bits.
TEST(AtomicParameters, GiveTheSameBits) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const int world : {1, 2, 3, 4}) {
      std::vector<float> expected;
      std::mutex mutex;
      for (const bool atomic : {false, true}) {
        for (const int stage : {0, 1, 2, 3}) {
          RunRanks(world, [&](int rank, const Communicator& communicator) {
            ModelSpec model = TensorsInUnits({3000, 700, 64, 1, 0});
            for (ParameterSpec& parameter : model.parameters) parameter.dtype = dtype;
            for (const int matrix : {0, 2, 4}) model.parameters[matrix].atomic = atomic;
            model.units[0].parameters.push_back("b");
            model.units.erase(model.units.begin() + 1);
            Trainer trainer(Options(stage), communicator, model,
                            [](ParameterId id, int64_t i) { return Exact(100 + id, i); });
            for (int step = 0; step < 2; ++step) trainer.Step(OfRank(rank, step));
            const std::vector<float> states = trainer.ReadStates();
            const std::lock_guard lock(mutex);
            if (expected.empty()) expected = states;
            EXPECT_EQ(states, expected) << "world " << world << ", stage " << stage;
          });
        }
      }
    }
  }
}

}  // namespace
}  // namespace zerohold::testing
