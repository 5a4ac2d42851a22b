// Learning-rate schedules: pure functions of the step number.
#pragma once

#include <cstdint>

#include "zerohold/export.h"
#include "zerohold/status.h"

namespace zerohold {

enum class ScheduleKind : uint8_t { kConstant, kLinear, kCosine };

// The factor that multiplies every group's learning rate at step t (t = 1 is the first step):
//   warm-up   t / warmup_steps                               for t <= warmup_steps
//   constant  1
//   linear    1 - (1 - final_fraction) x                     x = (t - warmup) / (total - warmup)
//   cosine    final_fraction + (1 - final_fraction) (1 + cos(pi x)) / 2        (SGDR, 1608.03983)
// and final_fraction from total_steps on; all times batch_size / base_batch_size when both are
// given (linear scaling rule, 1706.02677).
struct ScheduleOptions {
  ScheduleKind kind = ScheduleKind::kConstant;
  int64_t warmup_steps = 0;     // >= 0
  int64_t total_steps = 0;      // > warmup_steps for linear and cosine; not read for constant
  double final_fraction = 0.0;  // in [0, 1]
  int64_t base_batch_size = 0;  // samples; 0 means no scaling
  int64_t batch_size = 0;       // samples; given exactly when base_batch_size is

  // InvalidArgument naming the field, its value and the legal range.
  ZH_EXPORT Status Validate() const;
};

// Requires: options.Validate() is OK, step >= 1.
ZH_EXPORT double LearningRateFactor(const ScheduleOptions& options, int64_t step);

}  // namespace zerohold
