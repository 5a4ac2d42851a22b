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

// One weight, its gradients in order; its master after each step.
std::vector<double> WeightsAfter(const UpdateShape& shape, const GroupOptions& group, float weight,
                                 const std::vector<float>& gradients) {
  OperandArrays arrays(shape, 1);
  arrays.SetMasters({weight});
  std::vector<double> out;
  for (const float gradient : gradients) {
    arrays.SetGradient(0, gradient);
    arrays.Step(group, static_cast<int64_t>(out.size()) + 1);
    out.push_back(arrays.Masters()[0]);
  }
  return out;
}

std::vector<double> WeightsAfter(UpdateRule rule, const GroupOptions& group, float weight,
                                 const std::vector<float>& gradients) {
  return WeightsAfter({.rule = rule}, group, weight, gradients);
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

// The decay acts on the fp32 master, where it is above the grid; the bf16 copy follows, in either
// form of the master.
TEST(NumericsCases, NUM_08) {
  GroupOptions group;
  group.weight_decay = 1e-2;
  for (const MasterForm form : {MasterForm::kFloat32, MasterForm::kRemainder}) {
    OperandArrays arrays({.gradient = DType::kBFloat16, .copy = DType::kBFloat16, .master = form},
                         1);
    arrays.SetMasters({1.0f});
    for (int64_t step = 1; step <= 1000; ++step) arrays.Step(group, step);
    EXPECT_NEAR(arrays.Masters()[0], 0.9900498, 6e-5);
    EXPECT_EQ(arrays.Copy(0), 0.98828125f);
  }
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

// Every pair of gradient and parameter type is right to its rounding, and stays inside its arrays;
// and so is the form of a remainder.
TEST(NumericsCases, NUM_40) {
  GroupOptions group;
  group.learning_rate = 0x1p-6;
  for (const InstructionSet set : kSets) {
    if (!Supports(set)) continue;
    for (const DType gradient : kTypes) {
      for (const WeightForm form : kForms) {
        OperandArrays arrays({UpdateRule::kAdamW, gradient, form.copy, form.master}, 1001);
        arrays.SetMasters(std::vector<float>(1001, 1.0f));
        for (int64_t i = 0; i < 1001; ++i) arrays.SetGradient(i, i % 2 == 0 ? 0.5f : -0.25f);
        arrays.Step(group, 1, 1.0, set);
        EXPECT_TRUE(arrays.GuardsIntact());
        const std::vector<float> masters = arrays.Masters();
        const float tolerance = form.copy == DType::kFloat32 ? 1e-7f : 0.0f;
        for (int64_t i = 0; i < 1001; ++i) {
          const float expected = i % 2 == 0 ? 0.984375f : 1.015625f;
          ASSERT_NEAR(arrays.Copy(i), expected, tolerance)
              << NameOf(set) << ' ' << NameOf(gradient) << ' ' << NameOf(form.copy) << ' ' << i;
          ASSERT_NEAR(masters[i], expected, 1e-7f);
        }
      }
    }
  }
}

// Ten updates below half the grid of fp16 are lost in fp16 alone, and kept in a master.
TEST(ExactValues, SmallUpdatesOfAnFp16Weight) {
  GroupOptions group;
  group.learning_rate = 1e-4;
  OperandArrays with({UpdateRule::kSgd, DType::kFloat16, DType::kFloat16, MasterForm::kFloat32}, 1);
  OperandArrays alone(with.shape(), 1);
  for (OperandArrays* arrays : {&with, &alone}) {
    arrays->SetMasters({1.0f});
    arrays->SetGradient(0, 1.0f);
    for (int64_t step = 1; step <= 10; ++step) {
      arrays->Step(group, step);
      if (arrays == &alone) arrays->ForgetMasters();
    }
  }
  EXPECT_EQ(alone.Masters()[0], 1.0f);
  EXPECT_EQ(with.Masters()[0], 0.998999834f);
  EXPECT_EQ(with.Copy(0), 0.99902344f);  // the nearest of fp16
}

// A gradient that fp16 does not hold, and that a loss scale carries through it.
TEST(ExactValues, TinyGradientThroughALossScale) {
  GroupOptions group;
  group.learning_rate = 1.0;
  OperandArrays arrays({.rule = UpdateRule::kSgd, .gradient = DType::kFloat16}, 1);
  arrays.SetGradient(0, 1e-8f);
  arrays.Step(group, 1);
  EXPECT_EQ(arrays.Masters()[0], 0.0f);
  arrays.SetGradient(0, 1e-8f * 65536.0f);
  arrays.Step(group, 1, 1.0 / 65536.0);
  EXPECT_NEAR(arrays.Masters()[0], -9.997e-9, 1e-12);
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
  for (const InstructionSet set : kSets) {
    if (!Supports(set)) continue;
    OperandArrays arrays({}, 999);
    std::vector<float> masters;
    for (int64_t i = 0; i < 999; ++i) {
      const auto value = static_cast<float>(i);
      masters.push_back(std::sin(value));
      arrays.moment1()[i] = std::sin(2.0f * value);
      arrays.moment2()[i] = std::fabs(std::sin(3.0f * value));
      arrays.SetGradient(i, std::sin(4.0f * value));
    }
    arrays.SetMasters(masters);
    arrays.Step(GroupOptions{}, 3, 1.0, set);
    if (expected.empty()) expected = arrays.Masters();
    EXPECT_EQ(arrays.Masters(), expected) << NameOf(set);
  }
}

}  // namespace
}  // namespace zerohold::kernels
