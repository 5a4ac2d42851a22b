// What Engine::Memory counts: per fp32 parameter 4 bytes of value, 4 of gradient and 8 of moments,
// of which stage 1 keeps 1/N; and staging that does not grow with the model.
#include <gtest/gtest.h>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

constexpr int64_t kFrameBytes = int64_t{2} << 20;

void AddUnit(ModelSpec& model, const std::string& name,
             const std::vector<std::vector<int64_t>>& shapes) {
  UnitSpec unit{name, {}, {}};
  for (size_t i = 0; i < shapes.size(); ++i) {
    unit.parameters.push_back(name + "." + std::to_string(i));
    model.parameters.push_back({unit.parameters.back(), shapes[i]});
  }
  model.units.push_back(unit);
}

// A decoder of width 96 on bytes.
ModelSpec Blocks(int count) {
  constexpr int64_t kWidth = 96;
  ModelSpec model;
  AddUnit(model, "embedding", {{256, kWidth}, {128, kWidth}});
  for (int i = 0; i < count; ++i) {
    AddUnit(model, "block" + std::to_string(i),
            {{kWidth},
             {kWidth},
             {3 * kWidth, kWidth},
             {3 * kWidth},
             {kWidth, kWidth},
             {kWidth},
             {kWidth},
             {kWidth},
             {4 * kWidth, kWidth},
             {4 * kWidth},
             {kWidth, 4 * kWidth},
             {kWidth}});
  }
  AddUnit(model, "norm", {{kWidth}, {kWidth}});
  return model;
}

// A parameter begins at a multiple of 64 elements and a unit ends at one of 256: that is within 2 %
// for units of about 10,000 elements or more.
ModelSpec SmallUnits(int count) {
  ModelSpec model;
  for (int i = 0; i < count; ++i) {
    AddUnit(model, "unit" + std::to_string(i), {{96 + i % 7, 130}, {130}});
  }
  return model;
}

MemoryStats Measure(const EngineOptions& options, const Communicator& ranks, const ModelSpec& model,
                    int64_t* elems = nullptr) {
  auto engine = Engine::Create(options, {ranks}, model.parameters, model.units);
  EXPECT_TRUE(engine.ok()) << engine.status();
  if (!engine.ok()) return {};
  if (elems != nullptr) *elems = (*engine)->TotalElements();
  return (*engine)->Memory();
}

TEST(Memory, BytesOfAParameter) {
  RunStages({1, 2, 3, 4}, [](EngineOptions options, int, Communicator ranks) {
    for (const int64_t bucket : {int64_t{1} << 20, int64_t{1} << 14}) {
      options.bucket_elems = bucket;
      for (const ModelSpec& model : {Blocks(6), SmallUnits(80)}) {
        int64_t elems = 0;
        const MemoryStats memory = Measure(options, ranks, model, &elems);
        ASSERT_GT(elems, 600000);
        const auto expect = [&](MemoryKind kind, double bytes) {
          const auto counted = static_cast<double>(memory.Bytes(Tier::kHost, kind));
          const auto expected = bytes * static_cast<double>(elems);
          EXPECT_NEAR(counted, expected, 0.02 * expected) << static_cast<int>(kind);
        };
        const double part = 1.0 / ranks.size();
        const double share = options.zero_stage >= 1 ? part : 1.0;
        const double gradients = options.zero_stage >= 2 ? part : 1.0;
        const double parameters = options.zero_stage >= 3 ? part : 1.0;
        expect(MemoryKind::kParameters, 4 * parameters);
        expect(MemoryKind::kGradients, 4 * gradients);
        expect(MemoryKind::kMaster, 0);  // in fp32 the compute copy is the master
        expect(MemoryKind::kMoment1, 4 * share);
        expect(MemoryKind::kMoment2, 4 * share);
        const double all =
            (4 * parameters + 4 * gradients + 8 * share) * static_cast<double>(elems);
        EXPECT_NEAR(static_cast<double>(memory.ModelBytes()), all, 0.02 * all);
        EXPECT_LE(memory.Bytes(Tier::kHost, MemoryKind::kStaging), 2 * bucket * 4);
        for (const Tier tier : {Tier::kDevice, Tier::kNvme}) {
          for (int kind = 0; kind < static_cast<int>(MemoryKind::kCount); ++kind) {
            EXPECT_EQ(memory.Bytes(tier, static_cast<MemoryKind>(kind)), 0);
          }
        }
      }
    }
  });
}

// bf16 with an fp32 master: 2+2+12/N at stage 1, 2+14/N at 2, 16/N at 3; 2/N less with the
// remainder. Running sums of micro-batches are 4 more at stages 0 and 1, and 4/N instead of 2/N at
// 2 and 3.
TEST(Memory, BytesOfA16BitParameter) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    for (const MasterForm form : {MasterForm::kFloat32, MasterForm::kRemainder}) {
      for (const int64_t micro_batches : {1, 4}) {
        options.master = form;
        options.max_micro_batches = micro_batches;
        options.max_live_gradients_bytes = 3 * kFrameBytes;
        options.max_live_parameters_bytes = 4 * kFrameBytes;
        ModelSpec model = Blocks(6);
        for (ParameterSpec& parameter : model.parameters) parameter.dtype = DType::kBFloat16;
        int64_t elems = 0;
        const MemoryStats memory = Measure(options, ranks, model, &elems);
        const double part = 1.0 / ranks.size();
        const double states =
            (form == MasterForm::kFloat32 ? 12 : 10) * (options.zero_stage >= 1 ? part : 1.0);
        const double parameters = 2 * (options.zero_stage >= 3 ? part : 1.0);
        double gradients = options.zero_stage >= 2 ? 2 * part : 2.0;
        if (micro_batches > 1) gradients = options.zero_stage >= 2 ? 4 * part : 2.0 + 4.0;
        const double expected = (states + parameters + gradients) * static_cast<double>(elems);
        EXPECT_NEAR(static_cast<double>(memory.ModelBytes()), expected, 0.02 * expected)
            << "stage " << options.zero_stage << " micro-batches " << micro_batches;
        // Frames besides, as many as the options ask for, whatever the model.
        const int frames = (options.zero_stage >= 2 ? 3 : 0) + (options.zero_stage >= 3 ? 4 : 0);
        EXPECT_EQ(memory.Bytes(Tier::kHost, MemoryKind::kFrames), frames * kFrameBytes);
      }
    }
  });
}

// Over the ranks, stage 1 holds each state once.
TEST(Memory, StatesAreHeldOnceOverTheRanks) {
  for (const int world : {2, 3, 4}) {
    std::vector<int64_t> moments(world);
    int64_t elems = 0;
    RunRanks(world, [&](int rank, const Communicator& ranks) {
      int64_t mine = 0;
      moments[rank] = Measure(OptionsOfStage(1), ranks, Blocks(6), &mine)
                          .Bytes(Tier::kHost, MemoryKind::kMoment1);
      if (rank == 0) elems = mine;
    });
    int64_t sum = 0;
    for (const int64_t bytes : moments) sum += bytes;
    EXPECT_GE(sum, 4 * elems);
    EXPECT_LE(sum, 4 * elems + 4 * elems / 50);
  }
}

TEST(Memory, StagingDoesNotGrowWithTheModel) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.bucket_elems = 4096;
    const auto staging = [&](const ModelSpec& model) {
      return Measure(options, ranks, model).Bytes(Tier::kHost, MemoryKind::kStaging);
    };
    const int64_t small = staging(Blocks(1));
    EXPECT_EQ(staging(Blocks(8)), small);
    EXPECT_EQ(staging(SmallUnits(100)), small);
    EXPECT_LE(small, 2 * 4096 * 4);
    if (ranks.size() > 1) {
      EXPECT_GT(small, 0);
    }
  });
}

// A frozen parameter has its value alone.
TEST(Memory, FrozenParametersHaveNoStates) {
  RunStages({1, 2}, [](const EngineOptions& options, int, Communicator ranks) {
    ModelSpec model = Blocks(2);
    for (ParameterSpec& spec : model.parameters) spec.frozen = true;
    int64_t elems = 0;
    const MemoryStats memory = Measure(options, ranks, model, &elems);
    const double expected =
        4.0 * static_cast<double>(elems) / (options.zero_stage >= 3 ? ranks.size() : 1);
    EXPECT_NEAR(static_cast<double>(memory.Bytes(Tier::kHost, MemoryKind::kParameters)), expected,
                0.02 * expected);
    EXPECT_EQ(memory.Bytes(Tier::kHost, MemoryKind::kGradients), 0);
    EXPECT_EQ(memory.Bytes(Tier::kHost, MemoryKind::kMoment1), 0);
    EXPECT_EQ(memory.Bytes(Tier::kHost, MemoryKind::kMoment2), 0);
  });
}

}  // namespace
}  // namespace zerohold::testing
