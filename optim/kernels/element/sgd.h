// Stochastic gradient descent with momentum, as PyTorch has it: no dampening, the learning rate
// outside the moment, and Nesterov's form rewritten to look ahead from the weight that is kept
// (Sutskever et al. 2013, section 2.1, in the variables of Bengio et al., 1212.0901).
//
//   g <- g + wd p
//   m <- momentum m + g     (m = g in the first update)
//   p <- p - lr m           or with nesterov  p <- p - lr (g + momentum m)
#pragma once

#include "optim/kernels/update_rule.h"

namespace zerohold::kernels {

struct Sgd {
  struct Constants {
    float gradient_scale;
    float decay;
    float keep;   // of the moment: momentum, 0 in the first update
    float ahead;  // momentum with nesterov, else 0
    float learning_rate;
  };
  static constexpr bool kMoment1 = true;
  static constexpr bool kMoment2 = false;
  static constexpr uint32_t kReads = kMomentum | kNesterov | kWeightDecay;

  static Constants MakeConstants(const RuleSettings& settings) {
    const auto momentum = static_cast<float>(settings.momentum);
    Constants constants;
    constants.gradient_scale = static_cast<float>(settings.gradient_scale);
    constants.decay = static_cast<float>(settings.weight_decay);
    constants.keep = settings.step > 1 ? momentum : 0.0f;
    constants.ahead = settings.nesterov ? momentum : 0.0f;
    constants.learning_rate = static_cast<float>(settings.learning_rate);
    return constants;
  }

  // The choices are the same for all elements. They are there so that a moment which is not finite
  // counts for nothing where its factor is 0.
  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static Element Update(const Constants& c, Element e,
                                                        float gradient) {
    const float g = c.gradient_scale * gradient + c.decay * e.master;
    e.moment1 = c.keep == 0.0f ? g : c.keep * e.moment1 + g;
    const float step = c.ahead == 0.0f ? e.moment1 : g + c.ahead * e.moment1;
    e.master = e.master - c.learning_rate * step;
    return e;
  }
};

}  // namespace zerohold::kernels
