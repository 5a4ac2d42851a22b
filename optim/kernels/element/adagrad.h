// Adagrad (Duchi, Hazan, Singer 2011, the diagonal form; epsilon and L2 as in PyTorch, its decay of
// the learning rate being the schedule's business).
//
//   g <- g + wd p
//   v <- v + g g
//   p <- p - lr g / (sqrt(v) + epsilon)
//
// epsilon keeps 0 / 0 away: with epsilon 0 an element whose gradients were all 0 becomes NaN.
#pragma once

#include <cmath>

#include "optim/kernels/update_rule.h"

namespace zerohold::kernels {

struct Adagrad {
  struct Constants {
    float gradient_scale;
    float decay;
    float epsilon;
    float learning_rate;
  };
  static constexpr bool kMoment1 = false;
  static constexpr bool kMoment2 = true;
  static constexpr uint32_t kReads = kEpsilon | kWeightDecay;

  static Constants MakeConstants(const RuleSettings& settings) {
    Constants constants;
    constants.gradient_scale = static_cast<float>(settings.gradient_scale);
    constants.decay = static_cast<float>(settings.weight_decay);
    constants.epsilon = static_cast<float>(settings.epsilon);
    constants.learning_rate = static_cast<float>(settings.learning_rate);
    return constants;
  }

  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static Element Update(const Constants& c, Element e,
                                                        float gradient) {
    const float g = c.gradient_scale * gradient + c.decay * e.master;
    e.moment2 = e.moment2 + g * g;
    e.master = e.master - c.learning_rate * g / (sqrtf(e.moment2) + c.epsilon);
    return e;
  }
};

}  // namespace zerohold::kernels
