// Frames of gradients: a unit has one from its first backward use in a micro-batch until its
// reductions are issued. Room counts as free when they are issued, not when they are done, so that
// every rank decides the same; who gets the room waits until they are done.
//
// Threads: one owner.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "src/layout/layout.h"
#include "src/memory/extents.h"

namespace zerohold::engine {

class GradientFrames {
 public:
  // `layout` outlives it.
  GradientFrames(const layout::Layout& layout, int64_t frame_bytes);

  // False when there is no room. Requires: the unit has none.
  bool Allocate(UnitId unit);
  std::optional<memory::Extent> ExtentOf(UnitId unit) const { return extents_[unit]; }
  // A trial of what Allocate would do: from how it is now, less what is tried without.
  void BeginTrial() { trial_ = allocator_; }
  void TryWithout(UnitId unit);
  // Of units that are allocated in this order; -1 when all fit.
  UnitId FirstThatDoesNotFit(std::span<const UnitId> units);
  // `reductions` of the unit are issued and read the frame; the unit has it no longer.
  void Issued(UnitId unit, int64_t reductions);
  // One of them is done.
  void Done(UnitId unit);
  // No reduction reads the unit's frame any more.
  bool Quiet(UnitId unit) const;

 private:
  struct Busy {
    UnitId unit;
    memory::Extent extent;
    int64_t reductions;
  };

  const layout::Layout& layout_;
  memory::ExtentAllocator allocator_;
  memory::ExtentAllocator trial_;  // members, so that a trial allocates nothing
  memory::ExtentAllocator placed_;
  std::vector<std::optional<memory::Extent>> extents_;
  int64_t next_ = 0;        // where the search for room begins
  std::vector<Busy> busy_;  // in the order of issue
};

}  // namespace zerohold::engine
