// Compares every element of every state with a recomputed one: the same update rule on one rank,
// with nothing offloaded, unit by unit.
#pragma once

#include <cstdint>

#include "bench/stress/model.h"
#include "bench/stress/options.h"
#include "bench/stress/ranks.h"

namespace zerohold::bench {

// `engine` has done `steps` steps over `model`. Collective; the same on all ranks. Errors: DataLoss
// naming unit, state, element and both values; the engines'.
Status VerifyStates(Engine& engine, const StressModel& model, const StressOptions& options,
                    int64_t steps, Ranks& ranks);

}  // namespace zerohold::bench
