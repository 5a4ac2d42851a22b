// The dynamic loss scale as a state machine; pure. All ranks feed it the same verdicts, so they
// hold the same scale.
#pragma once

#include <cstdint>

#include "zerohold/options.h"

namespace zerohold::engine {

class LossScaler {
 public:
  explicit LossScaler(const LossScaleOptions& options)
      : options_(options), scale_(options.enabled ? options.initial : 1.0) {}

  double scale() const { return scale_; }
  int64_t skips_in_a_row() const { return skips_in_a_row_; }
  // max_skips steps in a row were skipped.
  bool exhausted() const { return options_.max_skips > 0 && skips_in_a_row_ >= options_.max_skips; }

  // A step was applied, or skipped because its gradients were not finite.
  void Applied();
  void Skipped();

 private:
  LossScaleOptions options_;
  double scale_;
  int64_t clean_steps_ = 0;  // since it last grew, shrank, or a step was skipped
  int64_t skips_ = 0;        // since it last grew or shrank
  int64_t skips_in_a_row_ = 0;
};

}  // namespace zerohold::engine
