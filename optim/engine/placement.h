// Which of a rank's arrays rest in memory and which on disk, and the slots of staging between: a
// pure function of options and sizes. Knows no file and no memory.
#pragma once

#include <absl/status/status.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/layout/layout.h"
#include "zerohold/options.h"

namespace zerohold::engine {

// Slots of one pool.
struct SlotPlan {
  int64_t slot_bytes = 0;
  int slots = 0;
  int64_t bytes() const { return slots * slot_bytes; }
};

// Host memory takes the first of each, as far as its budget goes. What units that come later add
// changes nothing of what was there, the slots included.
struct Placement {
  std::vector<bool> states;     // by record: are they on disk
  std::vector<bool> gradients;  // by space: are its reduced ones
  std::vector<bool> copies;     // by space: are its shards of parameters
  bool drop_copies = false;     // those are thrown away instead
  std::vector<bool> fetched;    // by record: an update works on a slot
  SlotPlan record_slots;        // each holds one record with its gradients and copies
  SlotPlan gradient_slots;      // on their way to disk
  SlotPlan copy_slots;          // on their way into a unit's frame
  int64_t staging_bytes() const {
    return record_slots.bytes() + gradient_slots.bytes() + copy_slots.bytes();
  }
  // The most that are under way: a slot of a record has up to three.
  int transfers() const {
    return std::min(255, 3 * record_slots.slots + gradient_slots.slots + copy_slots.slots);
  }
};

// Of all states of one element whose copy has this dtype.
int64_t StateBytes(const EngineOptions& options, DType dtype);

// The budgets with fractions as bytes of what there is, so that what comes later moves nothing. All
// stays all.
OffloadOptions InBytes(const EngineOptions& options, const layout::Layout& layout);

// `one_reduction`: the reduced gradient is no running sum, so it may go to disk.
Placement Place(const EngineOptions& options, const layout::Layout& layout, bool one_reduction);

// ResourceExhausted where more is on disk than may be, naming the options.
absl::Status CheckDiskBudgets(const EngineOptions& options, const layout::Layout& layout,
                              const Placement& placement);

}  // namespace zerohold::engine
