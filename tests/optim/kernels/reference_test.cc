// The rules beside the formulas of their papers in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "tests/optim/kernels/operand_arrays.h"

namespace zerohold::kernels {
namespace {

// One weight in float64, powers by the library, each formula as it stands in options.h.
struct Reference {
  double p, m = 0.0, v = 0.0;

  void Step(UpdateRule rule, const GroupOptions& o, double gradient, int64_t step) {
    const double lr = o.learning_rate;
    const double decayed = gradient + o.weight_decay * p;
    switch (rule) {
      case UpdateRule::kAdamW:
        p *= 1.0 - lr * o.weight_decay;
        return Adam(o, gradient, step);
      case UpdateRule::kAdam:
        return Adam(o, decayed, step);
      case UpdateRule::kSgd:
        m = step == 1 ? decayed : o.momentum * m + decayed;
        p -= lr * (o.nesterov ? decayed + o.momentum * m : m);
        return;
      case UpdateRule::kLion: {
        const double direction = o.beta1 * m + (1.0 - o.beta1) * gradient;
        p = p * (1.0 - lr * o.weight_decay) - lr * ((direction > 0.0) - (direction < 0.0));
        m = o.beta2 * m + (1.0 - o.beta2) * gradient;
        return;
      }
      case UpdateRule::kAdagrad:
        v += decayed * decayed;
        p -= lr * decayed / (std::sqrt(v) + o.epsilon);
    }
  }

  void Adam(const GroupOptions& o, double g, int64_t step) {
    m = o.beta1 * m + (1.0 - o.beta1) * g;
    v = o.beta2 * v + (1.0 - o.beta2) * g * g;
    const auto t = static_cast<double>(step);
    const double m_hat = m / (1.0 - std::pow(o.beta1, t));
    const double v_hat = v / (1.0 - std::pow(o.beta2, t));
    p -= o.learning_rate * m_hat / (std::sqrt(v_hat) + o.epsilon);
  }
};

struct Mode {
  const char* name;
  UpdateRule rule;
  GroupOptions group;
};

const Mode kModes[] = {
    {"AdamW", UpdateRule::kAdamW, {.weight_decay = 0.1}},
    {"Adam", UpdateRule::kAdam, {.weight_decay = 0.1}},
    {"Sgd", UpdateRule::kSgd, {.learning_rate = 0.01, .weight_decay = 0.1}},
    {"Momentum", UpdateRule::kSgd, {.learning_rate = 0.01, .weight_decay = 0.1, .momentum = 0.9}},
    {"Nesterov",
     UpdateRule::kSgd,
     {.learning_rate = 0.01, .weight_decay = 0.1, .momentum = 0.9, .nesterov = true}},
    {"Lion", UpdateRule::kLion, {.beta2 = 0.99, .weight_decay = 0.1}},
    {"Adagrad", UpdateRule::kAdagrad, {.learning_rate = 0.01, .weight_decay = 0.1}},
};

class EveryMode : public testing::TestWithParam<Mode> {};
INSTANTIATE_TEST_SUITE_P(, EveryMode, testing::ValuesIn(kModes),
                         [](const auto& info) { return info.param.name; });

// Weights and gradients are in (-1, 1), where fp32 is 6e-8 wide: 3e-7 is a rounding of half that
// for each of five steps, and as much for their lengths. The moments are compared too, beside their
// size.
TEST_P(EveryMode, StaysNearFloat64OverFiveSteps) {
  constexpr int64_t kElems = 50000;
  const Mode& mode = GetParam();
  std::mt19937_64 random(11);
  std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
  OperandArrays arrays({.rule = mode.rule}, kElems);
  std::vector<float> masters;
  std::vector<Reference> references;
  for (int64_t i = 0; i < kElems; ++i) {
    masters.push_back(uniform(random));
    references.push_back({masters.back()});
  }
  arrays.SetMasters(masters);
  double worst = 0.0, worst_moment = 0.0;
  for (int64_t step = 1; step <= 5; ++step) {
    for (int64_t i = 0; i < kElems; ++i) arrays.SetGradient(i, uniform(random));
    arrays.Step(mode.group, step);
    masters = arrays.Masters();
    for (int64_t i = 0; i < kElems; ++i) {
      Reference& reference = references[i];
      reference.Step(mode.rule, mode.group, arrays.Gradient(i), step);
      worst = std::max(worst, std::fabs(masters[i] - reference.p));
      worst_moment = std::max({worst_moment, std::fabs(arrays.moment1()[i] - reference.m),
                               std::fabs(arrays.moment2()[i] - reference.v)});
    }
  }
  EXPECT_LE(worst, 3e-7);
  EXPECT_LE(worst_moment, 2e-6);
  EXPECT_GT(worst, 0.0);  // fp32 cannot be exact: something was compared
  EXPECT_GT(worst_moment, 0.0);
}

}  // namespace
}  // namespace zerohold::kernels
