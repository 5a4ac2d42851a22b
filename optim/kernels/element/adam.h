// Adam with L2 (1412.6980, the decay being part of the gradient and so of both moments):
// g <- g + wd p, p <- p - step.
#pragma once

#include "optim/kernels/element/adam_moments.h"

namespace zerohold::kernels {

struct Adam {
  using Constants = AdamConstants;
  static constexpr bool kMoment1 = true;
  static constexpr bool kMoment2 = true;
  static constexpr uint32_t kReads = kAdamSettings;

  static Constants MakeConstants(const RuleSettings& settings) {
    return MakeAdamConstants(settings, settings.weight_decay);
  }

  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static Element Update(const Constants& c, Element e,
                                                        float gradient) {
    return AdamStep(c, e, c.gradient_scale * gradient + c.decay * e.master, 0.0f);
  }
};

}  // namespace zerohold::kernels
