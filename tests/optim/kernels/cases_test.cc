// Known failures of the field, at the level of the kernels; named by their ids.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "optim/kernels/cpu/cpu_features.h"
#include "optim/kernels/update.h"
#include "src/base/convert.h"
#include "src/base/norm_bins.h"
#include "tests/optim/kernels/operand_arrays.h"

namespace zerohold::kernels {
namespace {

// One weight, its gradients in order; the weight after each step.
std::vector<double> WeightsAfter(UpdateRule rule, const GroupOptions& group, float weight,
                                 const std::vector<float>& gradients) {
  OperandArrays arrays(1);
  *arrays.master() = weight;
  *arrays.moment1() = *arrays.moment2() = 0.0f;
  std::vector<double> out;
  for (const float gradient : gradients) {
    *arrays.gradient() = gradient;
    const auto step = static_cast<int64_t>(out.size()) + 1;
    arrays.Update(SelectUpdate(rule, InstructionSet::kBest),
                  MakeConstants(rule, group, group.learning_rate, step, 1.0));
    out.push_back(*arrays.master());
  }
  return out;
}

// epsilon stands outside the root and is not scaled by the correction.
TEST(NumericsCases, NUM_02) {
  GroupOptions group;
  group.epsilon = 1e-6;
  for (const UpdateRule rule : {UpdateRule::kAdamW, UpdateRule::kAdam}) {
    EXPECT_NEAR(WeightsAfter(rule, group, 0.0f, {1e-6f})[0], -5.0000e-4, 1e-8);
  }
}

// AdamW and Adam with L2 are two modes with two results.
TEST(NumericsCases, NUM_04) {
  GroupOptions group;
  group.learning_rate = 0.1;
  group.weight_decay = 0.1;
  const std::vector<double> adamw = WeightsAfter(UpdateRule::kAdamW, group, 2.0f, {0.5f, -0.25f});
  EXPECT_NEAR(adamw[0], 1.880000002, 1e-6);
  EXPECT_NEAR(adamw[1], 1.834566299, 1e-6);
  const std::vector<double> adam = WeightsAfter(UpdateRule::kAdam, group, 2.0f, {0.5f, -0.25f});
  EXPECT_NEAR(adam[0], 1.900000001, 1e-6);
  EXPECT_NEAR(adam[1], 1.839597387, 1e-6);
}

// The decay acts on the fp32 master, where it is above the grid; the bf16 copy follows.
TEST(NumericsCases, NUM_08) {
  GroupOptions group;
  group.weight_decay = 1e-2;
  const double master =
      WeightsAfter(UpdateRule::kAdamW, group, 1.0f, std::vector<float>(1000, 0.0f)).back();
  EXPECT_NEAR(master, 0.9900498, 6e-5);
  const uint16_t copy = base::FloatToBFloat16(static_cast<float>(master));
  EXPECT_EQ(base::BFloat16ToFloat(copy), 0.98828125f);
}

// No lane of a sum is dropped, at any length.
TEST(NumericsCases, NUM_38) {
  for (const int64_t elems : {1, 32, 33, 63, 64, 65, 1000003}) {
    const std::vector<float> ones(static_cast<size_t>(elems), 1.0f);
    base::NormBins bins;
    bins.Add(ones.data(), elems);
    const double expected = std::sqrt(static_cast<double>(elems));
    EXPECT_NEAR(bins.Norm(), expected, 1e-6 * expected) << elems;
  }
}

// A 16-bit type, or fp32, as a way in and a way out.
struct Type {
  const char* name;
  float (*round)(float);
};

// Every pair of gradient and parameter type is right to its rounding, and stays inside its arrays.
TEST(NumericsCases, NUM_40) {
  const Type types[] = {
      {"fp32", [](float f) { return f; }},
      {"bf16", [](float f) { return base::BFloat16ToFloat(base::FloatToBFloat16(f)); }},
      {"fp16", [](float f) { return base::Float16ToFloat(base::FloatToFloat16(f)); }},
  };
  GroupOptions group;
  group.learning_rate = 0x1p-6;
  for (const InstructionSet set :
       {InstructionSet::kBaseline, InstructionSet::kV3, InstructionSet::kV4}) {
    if (!Supports(set)) continue;
    for (const Type& gradient : types) {
      OperandArrays arrays(1001);
      for (int64_t i = 0; i < 1001; ++i) {
        arrays.master()[i] = 1.0f;
        arrays.moment1()[i] = arrays.moment2()[i] = 0.0f;
        arrays.gradient()[i] = gradient.round(i % 2 == 0 ? 0.5f : -0.25f);
      }
      arrays.Update(SelectUpdate(UpdateRule::kAdamW, set),
                    MakeConstants(UpdateRule::kAdamW, group, group.learning_rate, 1, 1.0));
      EXPECT_TRUE(arrays.GuardsIntact());
      for (const Type& parameter : types) {
        const float tolerance = std::string(parameter.name) == "fp32" ? 1e-7f : 0.0f;
        for (int64_t i = 0; i < 1001; ++i) {
          ASSERT_NEAR(parameter.round(arrays.master()[i]), i % 2 == 0 ? 0.984375f : 1.015625f,
                      tolerance)
              << NameOf(set) << ' ' << gradient.name << ' ' << parameter.name << ' ' << i;
        }
      }
    }
  }
}

// A group's decay of 0 is a value, and decays do not add up.
TEST(ApiCases, API_14) {
  GroupOptions group;
  group.learning_rate = 0.01;
  const auto decayed = [&group](double weight_decay) {
    group.weight_decay = weight_decay;
    return WeightsAfter(UpdateRule::kAdamW, group, 1.0f, {0.0f})[0];
  };
  EXPECT_EQ(decayed(0.0), 1.0);
  EXPECT_NEAR(decayed(0.1), 0.999, 1e-7);
  EXPECT_NEAR(decayed(0.2), 0.998, 1e-7);
}

// The choice is a function of features alone (there is no vendor to ask), it can be forced, and the
// results are equal.
TEST(PerformanceCases, PRF_06) {
  EXPECT_EQ(WidestSet({.avx2 = true, .avx512 = false}), InstructionSet::kV3);
  EXPECT_EQ(WidestSet({.avx2 = true, .avx512 = true}), InstructionSet::kV4);
  EXPECT_EQ(WidestSet({.avx2 = false, .avx512 = false}), InstructionSet::kBaseline);
  EXPECT_FALSE(Supports({.avx2 = false, .avx512 = false}, InstructionSet::kV3));
  EXPECT_FALSE(Supports({.avx2 = true, .avx512 = false}, InstructionSet::kV4));
  EXPECT_TRUE(Supports({.avx2 = false, .avx512 = false}, InstructionSet::kBaseline));
  EXPECT_EQ(BestInstructionSet(), WidestSet(DetectCpuFeatures()));

  std::vector<float> expected;
  for (const InstructionSet set :
       {InstructionSet::kBaseline, InstructionSet::kV3, InstructionSet::kV4}) {
    if (!Supports(set)) continue;
    OperandArrays arrays(999);
    for (int64_t i = 0; i < 999; ++i) {
      const auto value = static_cast<float>(i);
      arrays.master()[i] = std::sin(value);
      arrays.moment1()[i] = std::sin(2.0f * value);
      arrays.moment2()[i] = std::fabs(std::sin(3.0f * value));
      arrays.gradient()[i] = std::sin(4.0f * value);
    }
    arrays.Update(SelectUpdate(UpdateRule::kAdamW, set),
                  MakeConstants(UpdateRule::kAdamW, GroupOptions{}, 1e-2, 3, 1.0));
    std::vector<float> result(arrays.master(), arrays.master() + 999);
    if (expected.empty()) expected = result;
    EXPECT_EQ(result, expected) << NameOf(set);
  }
}

}  // namespace
}  // namespace zerohold::kernels
