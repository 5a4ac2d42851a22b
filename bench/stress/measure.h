// Drives the steps, each beside the bounds of its links, and sums up.
#pragma once

#include <array>
#include <cstdint>

#include "bench/stress/model.h"
#include "bench/stress/options.h"
#include "bench/stress/ranks.h"
#include "bench/stress/states.h"
#include "zerohold/stats.h"

namespace zerohold::bench {

// Of one step. Bytes are of all ranks, seconds those of the slowest.
struct LinkUse {
  double bytes = 0.0;
  double busy_s = 0.0;     // that something was under way; of memory, the step
  double bound_s = 0.0;    // for all links of a disk the same: they share it
  double ceiling_s = 0.0;  // that the link was busy within its bound
};

struct Measured {
  int64_t steps = 0;  // measured; one more was done before them
  double step_s = 0.0;
  double bound_s = 0.0;
  double read_bytes = 0.0;  // of all steps and ranks
  double written_bytes = 0.0;
  int64_t peak_resident_bytes = 0;  // of the rank that needs most, as staging_bytes
  int64_t staging_bytes = 0;
  LinkUse read, write, memory;
  // Seconds of a step on rank 0, by cause.
  std::array<double, static_cast<int>(Stall::kCount)> stall_s{};
};

// Medians over the steps. Collective; the same on all ranks but for stalls.
StatusOr<Measured> MeasureSteps(Engine& engine, const StressModel& model,
                                const StressOptions& options, const HeldStates& held, Ranks& ranks);

}  // namespace zerohold::bench
