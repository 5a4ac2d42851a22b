// The update: one result for all instruction sets, whatever shape, size and values; and the rules
// one by one.
#include "optim/kernels/update.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "optim/kernels/rule_table.h"
#include "tests/optim/kernels/operand_arrays.h"

namespace zerohold::kernels {
namespace {

GroupOptions Group() {
  GroupOptions group;
  group.weight_decay = 0.1;
  group.momentum = 0.9;
  return group;
}

std::string Describe(const UpdateShape& shape, InstructionSet set) {
  return std::string(FactsOf(shape.rule)->name) + " gradient " + NameOf(shape.gradient) + " copy " +
         NameOf(shape.copy) + (shape.master == MasterForm::kRemainder ? " remainder " : " ") +
         NameOf(set);
}

// Ordinary values, and between them all that is not: denormals, zeros of both signs, infinities,
// NaN, extremes, ties of the 16-bit types.
class Values {
 public:
  explicit Values(uint64_t seed) : random_(seed) {}

  float operator()() {
    constexpr float kOdd[] = {0.0f,      -0.0f,    FLT_MIN,    -FLT_MIN / 2, 1e-45f,  INFINITY,
                              -INFINITY, NAN,      -FLT_MAX,   1.0f,         FLT_MAX, 1e-30f,
                              6e-8f,     65519.0f, 0x1.01p+0f, -0x1.002p-3f};
    return random_() % 4 == 0 ? kOdd[random_() % std::size(kOdd)] : ordinary_(random_);
  }

 private:
  std::mt19937_64 random_;
  std::uniform_real_distribution<float> ordinary_{-1.0f, 1.0f};
};

// The state of all elements in fp32, moved as the element header says, one after the other.
class Scalar {
 public:
  explicit Scalar(OperandArrays& arrays) {
    const std::vector<float> masters = arrays.Masters();
    for (int64_t i = 0; i < arrays.elems(); ++i) {
      elements.push_back({masters[i], arrays.moment1()[i], arrays.moment2()[i]});
    }
  }

  void Update(const UpdateConstants& constants, OperandArrays& arrays) {
    switch (arrays.shape().rule) {
#define ZH_CASE(value, Rule) \
  case UpdateRule::value:    \
    return UpdateBy<Rule>(constants, arrays);
      ZH_UPDATE_RULES(ZH_CASE)
#undef ZH_CASE
    }
  }

  std::vector<Element> elements;

 private:
  template <typename Rule>
  void UpdateBy(const UpdateConstants& constants, OperandArrays& arrays) {
    typename Rule::Constants c;
    std::memcpy(&c, constants.values, sizeof c);
    for (int64_t i = 0; i < arrays.elems(); ++i) {
      elements[i] = Rule::Update(c, elements[i], arrays.Gradient(i));
    }
  }
};

// The copy that a master rounds to: nearest even, or in the form of a remainder, half away from 0.
float CopyOf(WeightForm form, float master) {
  if (form.master == MasterForm::kFloat32 || master != master) return RoundTo(form.copy, master);
  return base::BitsFloat((base::FloatBits(master) + 0x8000) & 0xffff0000);
}

void Fill(OperandArrays& arrays, uint64_t seed) {
  Values value(seed);
  std::vector<float> masters;
  for (int64_t i = 0; i < arrays.elems(); ++i) {
    masters.push_back(value());
    arrays.moment1()[i] = value();
    arrays.moment2()[i] = value();  // negative ones too: the root of one is NaN for everybody
    arrays.SetGradient(i, value());
  }
  arrays.SetMasters(masters);
}

void ExpectEqual(const Scalar& expected, OperandArrays& arrays, const std::string& what) {
  const std::vector<float> masters = arrays.Masters();
  for (int64_t i = 0; i < arrays.elems(); ++i) {
    const Element& e = expected.elements[i];
    ASSERT_TRUE(SameBits(masters[i], e.master)) << what << ' ' << i;
    ASSERT_TRUE(SameBits(arrays.Copy(i), CopyOf(arrays.form(), e.master))) << what << ' ' << i;
    ASSERT_TRUE(SameBits(arrays.moment1()[i], e.moment1)) << what << ' ' << i;
    ASSERT_TRUE(SameBits(arrays.moment2()[i], e.moment2)) << what << ' ' << i;
  }
  ASSERT_TRUE(arrays.GuardsIntact()) << what;
}

void ExpectEverySetEqual(const UpdateShape& shape, int64_t elems) {
  OperandArrays values(shape, elems);
  Fill(values, 7);
  Scalar expected(values);
  for (int64_t step = 1; step <= 3; ++step) {
    expected.Update(MakeConstants(shape.rule, Group(), 1e-3, step, 0.7), values);
  }
  for (const InstructionSet set : kSets) {
    if (!Supports(set)) continue;
    OperandArrays arrays(shape, elems);
    Fill(arrays, 7);
    for (int64_t step = 1; step <= 3; ++step) {
      arrays.Update(set, MakeConstants(shape.rule, Group(), 1e-3, step, 0.7));
    }
    ExpectEqual(expected, arrays, Describe(shape, set) + ' ' + std::to_string(elems));
  }
}

class EveryRule : public testing::TestWithParam<UpdateRule> {};
INSTANTIATE_TEST_SUITE_P(, EveryRule, testing::ValuesIn(kRules),
                         [](const auto& info) { return FactsOf(info.param)->name; });

TEST_P(EveryRule, EveryShapeAndInstructionSetGivesTheBitsOfTheElementHeader) {
  for (const DType gradient : kTypes) {
    for (const WeightForm form : kForms) {
      for (const int64_t elems : {0, 1, 31, 63, 64, 65, 1023, 10007}) {
        ExpectEverySetEqual({GetParam(), gradient, form.copy, form.master}, elems);
      }
    }
  }
}

TEST_P(EveryRule, AnySplitAndAlignmentOfTheArraysGivesTheSameBits) {
  constexpr int64_t kElems = 1023;
  const UpdateConstants constants = MakeConstants(GetParam(), Group(), 1e-3, 1, 1.0);
  for (const WeightForm form : kForms) {
    for (const InstructionSet set : kSets) {
      if (!Supports(set)) continue;
      const UpdateShape shape{GetParam(), DType::kBFloat16, form.copy, form.master};
      OperandArrays whole(shape, kElems), parts(shape, kElems);
      Fill(whole, 8);
      Fill(parts, 8);
      const UpdateFunction update = SelectUpdate(shape, set);
      whole.Update(set, constants);
      for (int64_t begin = 0, length = 1; begin < kElems; begin += length, length += 2) {
        length = std::min(length, kElems - begin);
        update(constants, parts.Operands(begin, length));
      }
      ExpectEqual(Scalar(whole), parts, Describe(shape, set));
    }
  }
}

TEST_P(EveryRule, GradientScaleMultipliesTheGradientAlone) {
  OperandArrays scaled({.rule = GetParam()}, 1000), plain({.rule = GetParam()}, 1000);
  std::mt19937_64 random(12);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  std::vector<float> masters;
  for (int64_t i = 0; i < 1000; ++i) {
    masters.push_back(uniform(random));
    scaled.moment1()[i] = plain.moment1()[i] = uniform(random);
    scaled.moment2()[i] = plain.moment2()[i] = std::fabs(uniform(random));
    const float gradient = uniform(random);
    scaled.SetGradient(i, gradient);
    plain.SetGradient(i, gradient * 0.25f);
  }
  scaled.SetMasters(masters);
  plain.SetMasters(masters);
  scaled.Step(Group(), 4, 0.25);
  plain.Step(Group(), 4);
  EXPECT_EQ(scaled.Masters(), plain.Masters());
  EXPECT_NE(scaled.Masters(), masters);
}

TEST_P(EveryRule, AnInfiniteOrNanGradientNeverLooksFinite) {
  for (const WeightForm form : kForms) {
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      OperandArrays arrays({GetParam(), DType::kFloat32, form.copy, form.master}, 1);
      arrays.SetMasters({1.0f});
      arrays.SetGradient(0, bad);
      arrays.Step(Group(), 1);
      // Lion steps by the sign alone; its moment tells.
      const bool by_sign = GetParam() == UpdateRule::kLion && !std::isnan(bad);
      const float witness = by_sign ? arrays.moment1()[0] : arrays.Copy(0);
      EXPECT_FALSE(std::isfinite(witness)) << Describe(arrays.shape(), InstructionSet::kBest);
    }
  }
}

// One weight of 0 with the moment m, after a step with gradient g at learning rate 1.
float StepOf(UpdateRule rule, const GroupOptions& group, float m, float g, int64_t step) {
  OperandArrays arrays({.rule = rule}, 1);
  arrays.moment1()[0] = m;
  arrays.SetGradient(0, g);
  arrays.Update(InstructionSet::kBest, MakeConstants(rule, group, 1.0, step, 1.0));
  return arrays.Masters()[0];
}

TEST(Sgd, TheFirstMomentIsTheGradientWhateverWasThere) {
  GroupOptions group;
  group.momentum = 0.5;
  for (const float before : {0.0f, 100.0f, INFINITY, NAN}) {
    EXPECT_EQ(StepOf(UpdateRule::kSgd, group, before, 2.0f, 1), -2.0f);
  }
  EXPECT_EQ(StepOf(UpdateRule::kSgd, group, 8.0f, 2.0f, 2), -6.0f);
  group.nesterov = true;
  EXPECT_EQ(StepOf(UpdateRule::kSgd, group, NAN, 2.0f, 1), -3.0f);
  EXPECT_EQ(StepOf(UpdateRule::kSgd, group, 8.0f, 2.0f, 2), -5.0f);
  EXPECT_EQ(StepOf(UpdateRule::kSgd, GroupOptions{}, NAN, 2.0f, 9), -2.0f);
}

TEST(Lion, TheSignOfZeroIsZeroAndOfNanNan) {
  const GroupOptions group;
  EXPECT_EQ(StepOf(UpdateRule::kLion, group, 0.0f, 0.0f, 1), 0.0f);
  EXPECT_EQ(StepOf(UpdateRule::kLion, group, -0.0f, -0.0f, 1), 0.0f);
  EXPECT_EQ(StepOf(UpdateRule::kLion, group, 0.0f, 1e-30f, 1), -1.0f);
  EXPECT_EQ(StepOf(UpdateRule::kLion, group, 0.0f, -1e30f, 1), 1.0f);
  EXPECT_EQ(StepOf(UpdateRule::kLion, group, 1.0f, -1.0f, 1), -1.0f);  // 0.9 m outweighs 0.1 g
  EXPECT_TRUE(std::isnan(StepOf(UpdateRule::kLion, group, 0.0f, NAN, 1)));
}

TEST(Facts, WhatARuleKeepsAndReads) {
  const auto kept = [](UpdateRule rule) {
    return std::pair(FactsOf(rule)->moment1, FactsOf(rule)->moment2);
  };
  EXPECT_EQ(kept(UpdateRule::kAdamW), std::pair(true, true));
  EXPECT_EQ(kept(UpdateRule::kAdam), std::pair(true, true));
  EXPECT_EQ(kept(UpdateRule::kSgd), std::pair(true, false));
  EXPECT_EQ(kept(UpdateRule::kLion), std::pair(true, false));
  EXPECT_EQ(kept(UpdateRule::kAdagrad), std::pair(false, true));
  EXPECT_STREQ(FactsOf(UpdateRule::kAdamW)->name, "AdamW");
  EXPECT_STREQ(FactsOf(UpdateRule::kAdagrad)->name, "Adagrad");
  EXPECT_EQ(FactsOf(UpdateRule::kSgd)->reads, kMomentum | kNesterov | kWeightDecay);
  EXPECT_EQ(FactsOf(static_cast<UpdateRule>(5)), nullptr);
  EXPECT_EQ(FactsOf(static_cast<UpdateRule>(255)), nullptr);
}

// A setting that kReads does not name has no way into the constants; one that it names has.
TEST_P(EveryRule, ReadsWhatItsHeaderSays) {
  const struct {
    uint32_t setting;
    void (*move)(GroupOptions&);
  } settings[] = {
      {kBeta1, [](GroupOptions& group) { group.beta1 = 0.5; }},
      {kBeta2, [](GroupOptions& group) { group.beta2 = 0.5; }},
      {kEpsilon, [](GroupOptions& group) { group.epsilon = 0.5; }},
      {kWeightDecay, [](GroupOptions& group) { group.weight_decay = 0.5; }},
      {kMomentum, [](GroupOptions& group) { group.momentum = 0.5; }},
      {kNesterov, [](GroupOptions& group) { group.nesterov = true; }},
  };
  const UpdateConstants plain = MakeConstants(GetParam(), Group(), 1e-3, 2, 1.0);
  for (const auto& setting : settings) {
    GroupOptions group = Group();
    setting.move(group);
    const UpdateConstants moved = MakeConstants(GetParam(), group, 1e-3, 2, 1.0);
    EXPECT_EQ(std::memcmp(&plain, &moved, sizeof plain) != 0,
              (FactsOf(GetParam())->reads & setting.setting) != 0)
        << setting.setting;
  }
}

TEST(Constants, CorrectionsAreRightForAnyBetaAndStep) {
  for (const double beta : {0.0, 0.5, 0.9, 0.95, 0.99, 0.999, 0.9999999}) {
    for (const int64_t step : {int64_t{1}, int64_t{2}, int64_t{3}, int64_t{10}, int64_t{1000},
                               int64_t{1000000}, int64_t{1} << 40}) {
      // expm1 and log1p do not cancel; beta itself is taken as the double that it is.
      const long double log_beta = std::log1p(-(1.0L - static_cast<long double>(beta)));
      const long double exact = -std::expm1(static_cast<long double>(step) * log_beta);
      const double made = OneMinusPower(beta, step);
      ASSERT_NEAR(made, static_cast<double>(exact), static_cast<double>(exact) * 1e-14)
          << beta << ' ' << step;
      ASSERT_LE(made, 1.0);
    }
  }
}

TEST(InstructionSets, NamesAndSupport) {
  EXPECT_STREQ(NameOf(InstructionSet::kBaseline), "baseline");
  EXPECT_STREQ(NameOf(InstructionSet::kV3), "v3");
  EXPECT_STREQ(NameOf(InstructionSet::kV4), "v4");
  EXPECT_STREQ(NameOf(InstructionSet::kBest), "best");
  EXPECT_TRUE(Supports(InstructionSet::kBest));
  EXPECT_TRUE(Supports(InstructionSet::kBaseline));
  EXPECT_TRUE(Supports(BestInstructionSet()));
  EXPECT_NE(BestInstructionSet(), InstructionSet::kBest);
  for (const UpdateRule rule : kRules) {
    EXPECT_EQ(SelectUpdate({.rule = rule}, InstructionSet::kBest),
              SelectUpdate({.rule = rule}, BestInstructionSet()));
  }
}

}  // namespace
}  // namespace zerohold::kernels
