// AdamW: Adam with the decay decoupled from the gradient (1711.05101, algorithm 2, its alpha being
// 1 and its lambda lr wd, as in PyTorch): p <- p - (lr wd p + step).
#pragma once

#include "optim/kernels/element/adam_moments.h"

namespace zerohold::kernels {

struct AdamW {
  using Constants = AdamConstants;
  static constexpr bool kMoment1 = true;
  static constexpr bool kMoment2 = true;
  static constexpr uint32_t kReads = kAdamSettings;

  static Constants MakeConstants(const RuleSettings& settings) {
    return MakeAdamConstants(settings, settings.learning_rate * settings.weight_decay);
  }

  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static Element Update(const Constants& c, Element e,
                                                        float gradient) {
    return AdamStep(c, e, c.gradient_scale * gradient, c.decay * e.master);
  }
};

}  // namespace zerohold::kernels
