// Learning-rate schedules.
#include "zerohold/schedule.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace zerohold {
namespace {

absl::Status Bad(const char* field, auto value, const char* legal) {
  return absl::InvalidArgumentError(
      absl::StrCat("schedule.", field, " is ", value, "; give ", legal));
}

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

Status ScheduleOptions::Validate() const {
  if (warmup_steps < 0) return Bad("warmup_steps", warmup_steps, "0 or more");
  if (kind != ScheduleKind::kConstant && total_steps <= warmup_steps) {
    return Bad("total_steps", total_steps,
               absl::StrCat("more than warmup_steps, which is ", warmup_steps).c_str());
  }
  if (!(final_fraction >= 0.0 && final_fraction <= 1.0)) {
    return Bad("final_fraction", final_fraction, "a number from 0 to 1");
  }
  if (base_batch_size < 0) return Bad("base_batch_size", base_batch_size, "0 (no scaling) or more");
  if (batch_size < 0) return Bad("batch_size", batch_size, "0 (no scaling) or more");
  if ((base_batch_size == 0) != (batch_size == 0)) {
    return Bad(
        "batch_size", batch_size,
        absl::StrCat("it together with base_batch_size, which is ", base_batch_size).c_str());
  }
  return absl::OkStatus();
}

double LearningRateFactor(const ScheduleOptions& options, int64_t step) {
  const double scaling =
      options.base_batch_size == 0
          ? 1.0
          : static_cast<double>(options.batch_size) / static_cast<double>(options.base_batch_size);
  return Shape(options, step) * scaling;
}

}  // namespace zerohold
