// Learning-rate schedules.
#include "zerohold/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace zerohold {
namespace {

// Where step t stands between the end of warm-up (0) and total_steps (1).
double Progress(const ScheduleOptions& options, int64_t step) {
  const double span = static_cast<double>(options.total_steps - options.warmup_steps);
  return std::min(1.0, static_cast<double>(step - options.warmup_steps) / span);
}

double Shape(const ScheduleOptions& options, int64_t step) {
  if (step <= options.warmup_steps) {
    return static_cast<double>(step) / static_cast<double>(options.warmup_steps);
  }
  const double rest = 1.0 - options.final_fraction;
  switch (options.kind) {
    case ScheduleKind::kConstant:
      return 1.0;
    case ScheduleKind::kLinear:
      return 1.0 - rest * Progress(options, step);
    case ScheduleKind::kCosine:
      return options.final_fraction +
             rest * 0.5 * (1.0 + std::cos(std::numbers::pi * Progress(options, step)));
  }
  return 1.0;
}

}  // namespace

double LearningRateFactor(const ScheduleOptions& options, int64_t step) {
  const double scaling =
      options.base_batch_size == 0
          ? 1.0
          : static_cast<double>(options.batch_size) / static_cast<double>(options.base_batch_size);
  return Shape(options, step) * scaling;
}

}  // namespace zerohold
