// What of the model's states this rank holds, as the engine lays it out: sizes alone.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/stress/model.h"
#include "zerohold/options.h"

namespace zerohold::bench {

struct HeldStates {
  std::vector<int64_t> record_bytes;  // without header and padding
  int64_t elems = 0;                  // of the records, padding included
  int64_t elem_bytes = 0;             // of all states
  int slots = 0;                      // of staging; 0 where nothing rests on disk
  int64_t slot_bytes = 0;
};

// Errors: those of the layout, which are the engine's.
StatusOr<HeldStates> StatesOf(const StressModel& model, const EngineOptions& options, int rank,
                              int world);

}  // namespace zerohold::bench
