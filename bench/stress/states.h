// What of the model's states this rank holds, as the engine lays it out: sizes alone.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/stress/model.h"
#include "zerohold/options.h"

namespace zerohold::bench {

// What of one record moves between slot and disk; 0 for what rests in memory. Without header and
// padding.
struct RecordBytes {
  int64_t states = 0;
  int64_t gradients = 0;
  int64_t copies = 0;
};

struct HeldStates {
  std::vector<RecordBytes> records;
  int64_t elems = 0;          // of the records, padding included
  int64_t elem_bytes = 0;     // of all states
  bool copy_is_read = false;  // by an update
  int slots = 0;              // of staging; 0 where nothing rests on disk
  int64_t slot_bytes = 0;
};

// Errors: those of the layout, which are the engine's.
StatusOr<HeldStates> StatesOf(const StressModel& model, const EngineOptions& options, int rank,
                              int world);

}  // namespace zerohold::bench
