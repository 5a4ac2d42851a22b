// Every shape of parameter that a model may have, in one model, at every stage: empty, 0-d, of one
// element, of prime sizes, of three types in a unit, frozen alone and among others, tied across
// units, in two groups, and without a gradient on some ranks or on all.
//
// Numbers are small multiples of powers of two, so that every sum, mean and update of a plain SGD
// is exact in each type: what a parameter must be is known without an engine.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

constexpr int kSteps = 4;
constexpr double kLearningRates[] = {0x1p-3, 0x1p-4};

enum Unit : UnitId { kIn, kMixed, kRare, kSeldom, kFrozen, kOut, kUnits };

ModelSpec EveryShape() {
  constexpr DType kB = DType::kBFloat16, kH = DType::kFloat16, kF = DType::kFloat32;
  return {
      {{"table", {37, 11}, kF, 0},
       {"mixed.bf16", {101}, kB, 0},
       {"mixed.fp16", {53}, kH, 1},
       {"mixed.frozen", {19}, kF, 0, true},
       {"mixed.empty", {0, 8}, kB, 0},
       {"mixed.scalar", {}, kF, 1},
       {"mixed.one", {1, 1, 1}, kH, 0},
       {"rare", {1009}, kB, 1},
       {"seldom", {29}, kF, 0},
       {"frozen", {17}, kB, 0, true},
       {"head", {2}, kH, 0}},
      {{"in", {"table"}, {}},
       {"mixed",
        {"mixed.bf16", "mixed.fp16", "mixed.frozen", "mixed.empty", "mixed.scalar", "mixed.one"},
        {}},
       {"rare", {"rare"}, {}},
       {"seldom", {"seldom"}, {}},
       {"frozen", {"frozen"}, {}},
       {"out", {"head"}, {"table"}}}};
}

// Parameters that a unit gives a gradient, by id.
const std::vector<ParameterId>& Reached(UnitId unit) {
  static const std::vector<ParameterId> kReached[] = {{0}, {1, 2, 4, 5, 6}, {7}, {8}, {}, {10, 0}};
  return kReached[unit];
}

float First(ParameterId id, int64_t i) { return 0.5f * static_cast<float>((i + id) % 7 - 3); }

// The mean over ranks of what a unit adds to a parameter: -2 to 2.
float MeanOf(int step, UnitId unit, ParameterId id, int64_t i) {
  return static_cast<float>((i + 2 * id + 3 * unit + step) % 5 - 2);
}

// In step 1 nobody has a gradient for the rare unit; in step 2 rank 0 alone has one for the seldom
// unit.
bool HasGradient(int step, UnitId unit, int rank) {
  return !(step == 1 && unit == kRare) && !(step == 2 && unit == kSeldom && rank > 0);
}

// What one rank adds: the others' parts cancel, or it makes up for their absence.
float GradientOf(int step, UnitId unit, ParameterId id, int64_t i, const Communicator& ranks) {
  if (!HasGradient(step, unit, ranks.rank())) return 0.0f;
  const float mean = MeanOf(step, unit, id, i);
  const bool alone = !HasGradient(step, unit, ranks.size() - 1);
  if (alone) return mean * static_cast<float>(ranks.size());
  return mean + static_cast<float>(2 * ranks.rank() - (ranks.size() - 1));
}

class Shapes {
 public:
  Shapes(const EngineOptions& options, const Communicator& ranks)
      : ranks_(ranks), model_(EveryShape()), trainer_(options, ranks, model_, First) {
    for (size_t id = 0; id < model_.parameters.size(); ++id) {
      const int64_t elems = trainer_.engine().Parameter(static_cast<ParameterId>(id)).elems;
      for (int64_t i = 0; i < elems; ++i) {
        expected_.push_back(First(static_cast<ParameterId>(id), i));
      }
    }
  }

  void MicroBatch(int step, bool last) {
    Engine& engine = trainer_.engine();
    ASSERT_TRUE(engine.BeginMicroBatch(1.0, last).ok());
    for (UnitId unit = 0; unit < kUnits; ++unit) {
      ASSERT_TRUE(engine.Acquire(unit, AcquireMode::kForward).ok());
      CheckCopies(unit);
      ASSERT_TRUE(engine.Release(unit).ok());
    }
    for (UnitId unit = kUnits - 1; unit >= 0; --unit) {
      const bool reports = Reports(step, unit);
      ASSERT_TRUE(
          engine.Acquire(unit, reports ? AcquireMode::kBackward : AcquireMode::kForward).ok());
      if (reports) {
        Add(step, unit);
        ASSERT_TRUE(engine.GradReady(unit).ok());
      }
      ASSERT_TRUE(engine.Release(unit).ok());
    }
  }

  void StepAndCheck(int step) {
    const StepStats stats = trainer_.Step();
    EXPECT_TRUE(stats.applied);
    EXPECT_EQ(stats.grad_norm, std::sqrt(Update(step))) << "step " << step;
    EXPECT_EQ(trainer_.ReadAll(), expected_) << "step " << step;
  }

  void CheckShapes() {
    for (size_t id = 0; id < model_.parameters.size(); ++id) {
      const TensorView view = trainer_.engine().Parameter(static_cast<ParameterId>(id));
      EXPECT_TRUE(std::ranges::equal(view.shape, model_.parameters[id].shape));
      EXPECT_EQ(view.dtype, model_.parameters[id].dtype);
    }
    EXPECT_EQ(trainer_.engine().TotalElements(), static_cast<int64_t>(expected_.size()));
    EXPECT_TRUE(trainer_.engine().Close().ok());
  }

 private:
  // A rank without a gradient acquires for the gather's sake alone.
  bool Reports(int step, UnitId unit) const { return HasGradient(step, unit, ranks_.rank()); }
  void Add(int step, UnitId unit) {
    for (const ParameterId id : Reached(unit)) {
      const TensorView view = trainer_.engine().Gradient(id);
      for (int64_t i = 0; i < view.elems; ++i) {
        Trainer::Put(view, i, Trainer::Get(view, i) + GradientOf(step, unit, id, i, ranks_));
      }
    }
  }
  void CheckCopies(UnitId unit) {
    for (const ParameterId id : Reached(unit)) {
      const TensorView view = trainer_.engine().Parameter(id);
      for (int64_t i = 0; i < view.elems; ++i) {
        ASSERT_EQ(Trainer::Get(view, i), expected_[BeginOf(id) + i]) << id << ' ' << i;
      }
    }
  }
  int64_t BeginOf(ParameterId id) {
    int64_t begin = 0;
    while (--id >= 0) begin += trainer_.engine().Parameter(id).elems;
    return begin;
  }
  // What the step must do to the values; the square of the norm.
  double Update(int step) {
    std::vector<float> gradients(expected_.size(), 0.0f);
    for (UnitId unit = 0; unit < kUnits; ++unit) {
      if (!HasGradient(step, unit, 0)) continue;
      for (const ParameterId id : Reached(unit)) {
        const int64_t begin = BeginOf(id);
        const double rate = kLearningRates[model_.parameters[id].group];
        for (int64_t i = 0; i < trainer_.engine().Parameter(id).elems; ++i) {
          const float mean = MeanOf(step, unit, id, i);
          gradients[begin + i] += mean;
          expected_[begin + i] -= static_cast<float>(rate * mean);
        }
      }
    }
    double squares = 0.0;
    for (const float gradient : gradients) squares += gradient * gradient;
    return squares;
  }

  const Communicator ranks_;
  const ModelSpec model_;
  Trainer trainer_;
  std::vector<float> expected_;
};

TEST(Shapes, EveryShapeAtEveryStage) {
  RunStages({1, 2, 3, 4}, [](EngineOptions options, int, Communicator ranks) {
    options.rule = UpdateRule::kSgd;
    options.groups = {{.learning_rate = kLearningRates[0]}, {.learning_rate = kLearningRates[1]}};
    options.bucket_elems = 256;
    options.max_live_gradients_bytes = int64_t{16} << 20;  // the tied table stays to the end
    for (const int micro_batches : {1, 2}) {
      for (const int64_t threshold : {0, 30}) {
        options.max_micro_batches = micro_batches;
        options.persistence_threshold_elems = threshold;
        Shapes shapes(options, ranks);
        for (int step = 0; step < kSteps; ++step) {
          for (int i = 0; i < micro_batches; ++i) shapes.MicroBatch(step, i + 1 == micro_batches);
          shapes.StepAndCheck(step);
        }
        shapes.CheckShapes();
      }
    }
  });
}

// A unit and what it uses are there at one time, each in one piece wherever the other lies: too
// little room for them is told at Create, and by default there is enough.
TEST(Shapes, AUnitNeedsRoomForWhatItUses) {
  RunStages({1}, [](EngineOptions options, int, Communicator ranks) {
    options.max_micro_batches = 1;
    ModelSpec model = TensorsInUnits({700000, 500000, 500000, 300000});
    model.units[3].uses = {"a"};
    EngineOptions tight = options;
    tight.max_live_parameters_bytes = tight.max_live_gradients_bytes = int64_t{4} << 20;
    const Status refused = Engine::Create(tight, {ranks}, model.parameters, model.units).status();
    EXPECT_EQ(refused.ok(), options.zero_stage < 2);
    if (!refused.ok()) {
      EXPECT_THAT(
          std::string(refused.message()),
          ::testing::AllOf(::testing::HasSubstr("unit unit_d"), ::testing::HasSubstr("8388608")));
    }
    Trainer trainer(options, ranks, model, Constant(1));
    for (int step = 0; step < 2; ++step) {
      EXPECT_TRUE(trainer.Step(Gradients({{1.0f}, {1.0f}, {1.0f}, {1.0f}})).applied);
    }
  });
}

// No more than twice the room that all units need is taken, however much is allowed.
TEST(Shapes, RoomWithoutALimit) {
  RunRanks(2, [](int, const Communicator& ranks) {
    EngineOptions options = OptionsOfStage(3);
    options.max_live_parameters_bytes = std::numeric_limits<int64_t>::max();
    options.max_live_gradients_bytes = int64_t{1} << 60;
    Trainer trainer(options, ranks, TensorsInUnits({700, 700, 700}), Constant(1));
    EXPECT_EQ(trainer.engine().Memory().Bytes(Tier::kHost, MemoryKind::kFrames),
              2 * 2 * 3 * (int64_t{2} << 20));
    EXPECT_TRUE(trainer.Step(Gradients({{1}, {1}, {1}})).applied);
  });
}

// A reduction that waits for a rank without a gradient, which comes to it late, must not hold up
// the gathers that this rank needs to get there: whatever the frames, nobody waits for ever.
TEST(Shapes, AUnitThatOneRankDoesNotReport) {
  RunStages({2, 3}, [](EngineOptions options, int rank, Communicator ranks) {
    options.max_micro_batches = 1;
    for (const int frames : {2, 4}) {
      options.max_live_gradients_bytes = frames * (int64_t{2} << 20);
      Trainer trainer(options, ranks,
                      TensorsInUnits({100, 600000, 100, 100, 600000, 100, 100, 100, 100, 100}),
                      Constant(1));
      Engine& engine = trainer.engine();
      const auto nothing = [](ParameterId, std::span<const float>, std::span<float>) {};
      for (int step = 0; step < 3; ++step) {
        ASSERT_TRUE(engine.BeginMicroBatch().ok());
        for (UnitId unit = 9; unit >= 0; --unit) {
          if (unit == 7 && rank == 1) {
            ASSERT_TRUE(engine.Acquire(unit, AcquireMode::kForward).ok());
            ASSERT_TRUE(engine.Release(unit).ok());
          } else {
            trainer.Backward(unit, nothing);
          }
        }
        EXPECT_TRUE(trainer.Step().applied) << frames << " frames";
      }
    }
  });
}

}  // namespace
}  // namespace zerohold::testing
