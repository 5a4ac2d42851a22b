// Lion (2302.06675, program 1): a step of one length in the direction of an interpolation between
// moment and gradient, and a moment that moves more slowly.
//
//   p <- p - (lr wd p + lr sign(beta1 m + (1 - beta1) g))
//   m <- beta2 m + (1 - beta2) g
//
// sign(0) is 0, sign(NaN) is NaN.
#pragma once

#include "optim/kernels/update_rule.h"

namespace zerohold::kernels {

struct Lion {
  struct Constants {
    float gradient_scale;
    float beta1;
    float one_minus_beta1;
    float beta2;
    float one_minus_beta2;
    float decay;  // lr wd
    float learning_rate;
  };
  static constexpr bool kMoment1 = true;
  static constexpr bool kMoment2 = false;
  static constexpr uint32_t kReads = kBeta1 | kBeta2 | kWeightDecay;

  static Constants MakeConstants(const RuleSettings& settings) {
    Constants constants;
    constants.gradient_scale = static_cast<float>(settings.gradient_scale);
    constants.beta1 = static_cast<float>(settings.beta1);
    constants.one_minus_beta1 = static_cast<float>(1.0 - settings.beta1);
    constants.beta2 = static_cast<float>(settings.beta2);
    constants.one_minus_beta2 = static_cast<float>(1.0 - settings.beta2);
    constants.decay = static_cast<float>(settings.learning_rate * settings.weight_decay);
    constants.learning_rate = static_cast<float>(settings.learning_rate);
    return constants;
  }

  // One subtraction, so that a decay below the grid of the weight is not lost beside the step.
  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static Element Update(const Constants& c, Element e,
                                                        float gradient) {
    const float g = c.gradient_scale * gradient;
    const float direction = c.beta1 * e.moment1 + c.one_minus_beta1 * g;
    const float sign = direction > 0.0f ? 1.0f : direction < 0.0f ? -1.0f : direction;
    e.moment1 = c.beta2 * e.moment1 + c.one_minus_beta2 * g;
    e.master = e.master - (c.decay * e.master + c.learning_rate * sign);
    return e;
  }
};

}  // namespace zerohold::kernels
