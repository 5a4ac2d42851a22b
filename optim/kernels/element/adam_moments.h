// What Adam and AdamW share: the two moments and the step along their ratio (1412.6980, algorithm
// 1).
//
//   m <- beta1 m + (1 - beta1) g
//   v <- beta2 v + (1 - beta2) g g
//   step = lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
//
// epsilon stays outside the root and is not scaled by a correction. The corrections are constants
// of the step: lr / (1 - beta1^t) and 1 / sqrt(1 - beta2^t).
#pragma once

#include <cmath>

#include "optim/kernels/update_rule.h"

namespace zerohold::kernels {

inline constexpr uint32_t kAdamSettings = kBeta1 | kBeta2 | kEpsilon | kWeightDecay;

struct AdamConstants {
  float gradient_scale;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float step_size;        // lr / (1 - beta1^t)
  float root_correction;  // 1 / sqrt(1 - beta2^t)
  float epsilon;
  float decay;  // the rule's own: of the weight (AdamW: lr wd) or of the gradient (Adam: wd)
};

// 1 - beta^count by repeated squaring, as sums of positive numbers alone, so that nothing cancels:
// with a = 1 - x and b = 1 - y, 1 - x y is a + b - a b = a + x b. No pow: libraries differ in its
// last bits.
inline double OneMinusPower(double beta, int64_t count) {
  double result = 0.0;
  double square = 1.0 - beta;  // 1 - beta^(2^i)
  for (; count > 0; count /= 2) {
    if (count % 2 == 1) result += (1.0 - result) * square;
    square += (1.0 - square) * square;
  }
  return result;
}

inline AdamConstants MakeAdamConstants(const RuleSettings& settings, double decay) {
  const double correction1 = OneMinusPower(settings.beta1, settings.step);
  const double correction2 = OneMinusPower(settings.beta2, settings.step);
  AdamConstants constants;
  constants.gradient_scale = static_cast<float>(settings.gradient_scale);
  constants.beta1 = static_cast<float>(settings.beta1);
  constants.one_minus_beta1 = static_cast<float>(1.0 - settings.beta1);
  constants.beta2 = static_cast<float>(settings.beta2);
  constants.one_minus_beta2 = static_cast<float>(1.0 - settings.beta2);
  constants.step_size = static_cast<float>(settings.learning_rate / correction1);
  constants.root_correction = static_cast<float>(1.0 / std::sqrt(correction2));
  constants.epsilon = static_cast<float>(settings.epsilon);
  constants.decay = static_cast<float>(decay);
  return constants;
}

// Moves the moments along `gradient` (scaled, decayed if the rule does that) and takes their step
// together with `weight_decay`, the decoupled part: one subtraction, so that a decay below the grid
// of the weight is not lost beside the step.
ZH_HOST_DEVICE ZH_ALWAYS_INLINE Element AdamStep(const AdamConstants& c, Element e, float gradient,
                                                 float weight_decay) {
  e.moment1 = c.beta1 * e.moment1 + c.one_minus_beta1 * gradient;
  e.moment2 = c.beta2 * e.moment2 + c.one_minus_beta2 * gradient * gradient;
  const float denominator = sqrtf(e.moment2) * c.root_correction + c.epsilon;
  e.master = e.master - (weight_decay + c.step_size * e.moment1 / denominator);
  return e;
}

}  // namespace zerohold::kernels
