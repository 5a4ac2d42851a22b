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
  // Whether it would be true if these had theirs no longer.
  bool FitsWithout(std::span<const UnitId> others, UnitId unit);
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
  memory::ExtentAllocator trial_;  // see FitsWithout; here so that it allocates nothing
  std::vector<std::optional<memory::Extent>> extents_;
  int64_t next_ = 0;        // where the search for room begins
  std::vector<Busy> busy_;  // in the order of issue
};

}  // namespace zerohold::engine
