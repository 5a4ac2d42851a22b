// The update: one result for all instruction sets, near to float64, whatever size and values.
#include "optim/kernels/update.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "optim/kernels/cpu/loop.h"
#include "tests/optim/kernels/operand_arrays.h"

namespace zerohold::kernels {
namespace {

constexpr UpdateRule kRules[] = {UpdateRule::kAdamW, UpdateRule::kAdam};
constexpr InstructionSet kSets[] = {InstructionSet::kBaseline, InstructionSet::kV3,
                                    InstructionSet::kV4, InstructionSet::kBest};

GroupOptions Group() {
  GroupOptions group;
  group.weight_decay = 0.1;
  return group;
}

// Ordinary values, and between them all that is not: denormals, zeros of both signs, infinities,
// NaN, extremes.
void Fill(OperandArrays& arrays, uint64_t seed) {
  constexpr float kOdd[] = {0.0f,      -0.0f, FLT_MIN, -FLT_MIN / 2, 1e-45f, INFINITY,
                            -INFINITY, NAN,   FLT_MAX, -FLT_MAX,     1e-30f, 1.0f};
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<float> ordinary(-1.0f, 1.0f);
  const auto value = [&] {
    return random() % 4 == 0 ? kOdd[random() % std::size(kOdd)] : ordinary(random);
  };
  for (int64_t i = 0; i < arrays.elems(); ++i) {
    arrays.master()[i] = value();
    arrays.moment1()[i] = value();
    arrays.moment2()[i] = value();  // negative ones too: the root of one is NaN for everybody
    arrays.gradient()[i] = value();
  }
}

// The rule on one element after the other, as the element header says it.
template <typename Rule>
void Scalar(const UpdateConstants& constants, OperandArrays& arrays) {
  typename Rule::Constants c;
  std::memcpy(&c, constants.values, sizeof c);
  for (int64_t i = 0; i < arrays.elems(); ++i) {
    const Element before{arrays.master()[i], arrays.moment1()[i], arrays.moment2()[i]};
    const Element after = Rule::Update(c, before, arrays.gradient()[i]);
    arrays.master()[i] = after.master;
    arrays.moment1()[i] = after.moment1;
    arrays.moment2()[i] = after.moment2;
  }
}

void ScalarOf(UpdateRule rule, const UpdateConstants& constants, OperandArrays& arrays) {
  if (rule == UpdateRule::kAdamW) return Scalar<AdamW>(constants, arrays);
  Scalar<Adam>(constants, arrays);
}

TEST(Update, EveryInstructionSetGivesTheBitsOfTheElementHeader) {
  for (const UpdateRule rule : kRules) {
    for (const int64_t elems : {0, 1, 31, 63, 64, 65, 1023, 100003}) {
      OperandArrays expected(elems);
      Fill(expected, 7);
      for (int64_t step = 1; step <= 3; ++step) {
        ScalarOf(rule, MakeConstants(rule, Group(), 1e-3, step, 0.7), expected);
      }
      for (const InstructionSet set : kSets) {
        if (!Supports(set)) continue;
        OperandArrays arrays(elems);
        Fill(arrays, 7);
        for (int64_t step = 1; step <= 3; ++step) {
          arrays.Update(SelectUpdate(rule, set), MakeConstants(rule, Group(), 1e-3, step, 0.7));
        }
        for (int64_t i = 0; i < elems; ++i) {
          ASSERT_TRUE(SameBits(arrays.master()[i], expected.master()[i]))
              << NameOf(set) << ' ' << i;
          ASSERT_TRUE(SameBits(arrays.moment1()[i], expected.moment1()[i]))
              << NameOf(set) << ' ' << i;
          ASSERT_TRUE(SameBits(arrays.moment2()[i], expected.moment2()[i]))
              << NameOf(set) << ' ' << i;
        }
        ASSERT_TRUE(arrays.GuardsIntact()) << NameOf(set) << ' ' << elems;
      }
    }
  }
}

TEST(Update, AnySplitAndAlignmentOfTheArraysGivesTheSameBits) {
  constexpr int64_t kElems = 1023;
  OperandArrays whole(kElems), parts(kElems);
  Fill(whole, 8);
  Fill(parts, 8);
  const UpdateConstants constants = MakeConstants(UpdateRule::kAdamW, Group(), 1e-3, 1, 1.0);
  for (const InstructionSet set : kSets) {
    if (!Supports(set)) continue;
    const UpdateFunction update = SelectUpdate(UpdateRule::kAdamW, set);
    whole.Update(update, constants);
    for (int64_t begin = 0, length = 1; begin < kElems; begin += length, length += 2) {
      length = std::min(length, kElems - begin);
      update(constants, {parts.master() + begin, parts.moment1() + begin, parts.moment2() + begin,
                         parts.gradient() + begin, length});
    }
    for (int64_t i = 0; i < kElems; ++i) {
      ASSERT_TRUE(SameBits(whole.master()[i], parts.master()[i])) << NameOf(set) << ' ' << i;
      ASSERT_TRUE(SameBits(whole.moment2()[i], parts.moment2()[i])) << NameOf(set) << ' ' << i;
    }
  }
}

// The formulas of the papers in float64, powers by the library.
struct Reference {
  double p, m = 0.0, v = 0.0;

  void Step(UpdateRule rule, const GroupOptions& o, double gradient, int64_t step) {
    double g = gradient;
    if (rule == UpdateRule::kAdam) g += o.weight_decay * p;
    if (rule == UpdateRule::kAdamW) p *= 1.0 - o.learning_rate * o.weight_decay;
    m = o.beta1 * m + (1.0 - o.beta1) * g;
    v = o.beta2 * v + (1.0 - o.beta2) * g * g;
    const double t = static_cast<double>(step);
    const double m_hat = m / (1.0 - std::pow(o.beta1, t));
    const double v_hat = v / (1.0 - std::pow(o.beta2, t));
    p -= o.learning_rate * m_hat / (std::sqrt(v_hat) + o.epsilon);
  }
};

TEST(Update, StaysNearFloat64OverFiveSteps) {
  constexpr int64_t kElems = 100000;
  for (const UpdateRule rule : kRules) {
    std::mt19937_64 random(11);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    OperandArrays arrays(kElems);
    std::vector<Reference> reference(kElems);
    for (int64_t i = 0; i < kElems; ++i) {
      arrays.master()[i] = uniform(random);
      arrays.moment1()[i] = arrays.moment2()[i] = 0.0f;
      reference[i].p = arrays.master()[i];
    }
    double worst = 0.0;
    for (int64_t step = 1; step <= 5; ++step) {
      for (int64_t i = 0; i < kElems; ++i) arrays.gradient()[i] = uniform(random);
      arrays.Update(SelectUpdate(rule, InstructionSet::kBest),
                    MakeConstants(rule, Group(), Group().learning_rate, step, 1.0));
      for (int64_t i = 0; i < kElems; ++i) {
        reference[i].Step(rule, Group(), arrays.gradient()[i], step);
        worst = std::max(worst, std::fabs(arrays.master()[i] - reference[i].p));
      }
    }
    EXPECT_LE(worst, 3e-7) << static_cast<int>(rule);
    EXPECT_GT(worst, 0.0);  // fp32 cannot be exact: something was compared
  }
}

TEST(Update, GradientScaleMultipliesTheGradientAlone) {
  for (const UpdateRule rule : kRules) {
    OperandArrays scaled(1000), plain(1000);
    std::mt19937_64 random(12);
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    for (int64_t i = 0; i < 1000; ++i) {
      scaled.master()[i] = plain.master()[i] = uniform(random);
      scaled.moment1()[i] = plain.moment1()[i] = uniform(random);
      scaled.moment2()[i] = plain.moment2()[i] = std::fabs(uniform(random));
      scaled.gradient()[i] = uniform(random);
      plain.gradient()[i] = scaled.gradient()[i] * 0.25f;
    }
    const UpdateFunction update = SelectUpdate(rule, InstructionSet::kBest);
    scaled.Update(update, MakeConstants(rule, Group(), 1e-3, 4, 0.25));
    plain.Update(update, MakeConstants(rule, Group(), 1e-3, 4, 1.0));
    for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(scaled.master()[i], plain.master()[i]) << i;
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

// Rules with fewer states than Adam, as later ones have: what they do not keep is never touched.
struct Descent {
  struct Constants {
    float rate;
  };
  static constexpr int kMoments = 0;
  ZH_ALWAYS_INLINE static Element Update(const Constants& c, Element e, float gradient) {
    e.master -= c.rate * gradient;
    return e;
  }
};

struct Momentum {
  using Constants = Descent::Constants;
  static constexpr int kMoments = 1;
  ZH_ALWAYS_INLINE static Element Update(const Constants& c, Element e, float gradient) {
    e.moment1 = 0.5f * e.moment1 + gradient;
    e.master -= c.rate * e.moment1;
    return e;
  }
};

TEST(UpdateLoop, RulesWithFewerMoments) {
  OperandArrays arrays(100);
  for (int64_t i = 0; i < 100; ++i) {
    arrays.master()[i] = 1.0f;
    arrays.moment1()[i] = 4.0f;
    arrays.gradient()[i] = 2.0f;
  }
  const UpdateConstants constants{{0.125f}};
  UpdateLoop<Descent>(constants, {arrays.master(), nullptr, nullptr, arrays.gradient(), 100});
  for (int64_t i = 0; i < 100; ++i) ASSERT_EQ(arrays.master()[i], 0.75f);
  UpdateLoop<Momentum>(constants,
                       {arrays.master(), arrays.moment1(), nullptr, arrays.gradient(), 100});
  for (int64_t i = 0; i < 100; ++i) ASSERT_EQ(arrays.master()[i], 0.25f);
  for (int64_t i = 0; i < 100; ++i) ASSERT_EQ(arrays.moment1()[i], 4.0f);
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
    EXPECT_EQ(SelectUpdate(rule, InstructionSet::kBest), SelectUpdate(rule, BestInstructionSet()));
  }
}

}  // namespace
}  // namespace zerohold::kernels
