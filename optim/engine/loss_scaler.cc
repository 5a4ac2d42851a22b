// Growth and backoff of the loss scale.
#include "optim/engine/loss_scaler.h"

#include <algorithm>

namespace zerohold::engine {

void LossScaler::Applied() {
  skips_in_a_row_ = 0;
  if (!options_.enabled || !options_.dynamic) return;
  if (++clean_steps_ < options_.growth_interval) return;
  scale_ = std::min(scale_ * options_.growth, options_.cap);
  clean_steps_ = 0;
  skips_ = 0;
}

void LossScaler::Skipped() {
  ++skips_in_a_row_;
  clean_steps_ = 0;
  if (!options_.enabled || !options_.dynamic) return;
  if (++skips_ < options_.hysteresis) return;
  scale_ = std::max(scale_ * options_.backoff, options_.floor);
  skips_ = 0;
}

}  // namespace zerohold::engine
