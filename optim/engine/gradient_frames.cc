// Room for gradients.
#include "optim/engine/gradient_frames.h"

#include <algorithm>

#include "src/base/check.h"

namespace zerohold::engine {

GradientFrames::GradientFrames(const layout::Layout& layout, int64_t frame_bytes)
    : layout_(layout),
      allocator_(frame_bytes),
      trial_(frame_bytes),
      placed_(frame_bytes),
      extents_(layout.units().size()) {
  busy_.reserve(layout.units().size());
}

// Round the frames, so that a unit does not wait for the reduction of the one right before it.
bool GradientFrames::Allocate(UnitId unit) {
  ZH_CHECK(!extents_[unit], unit);
  extents_[unit] = allocator_.Allocate(layout_.units()[unit].gradient_bytes.size(), next_);
  if (!extents_[unit]) return false;
  next_ = extents_[unit]->offset + extents_[unit]->bytes;
  return true;
}

void GradientFrames::TryWithout(UnitId unit) {
  if (extents_[unit]) trial_.Free(*extents_[unit]);
}

UnitId GradientFrames::FirstThatDoesNotFit(std::span<const UnitId> units) {
  placed_ = trial_;
  int64_t next = next_;
  for (const UnitId unit : units) {
    if (!layout_.units()[unit].gradients_framed) continue;
    const auto extent = placed_.Allocate(layout_.units()[unit].gradient_bytes.size(), next);
    if (!extent) return unit;
    next = extent->offset + extent->bytes;
  }
  return -1;
}

void GradientFrames::Issued(UnitId unit, int64_t reductions) {
  const memory::Extent extent = *extents_[unit];
  extents_[unit].reset();
  allocator_.Free(extent);
  if (reductions > 0) busy_.push_back({unit, extent, reductions});
}

void GradientFrames::Done(UnitId unit) {
  const auto busy = std::find_if(busy_.begin(), busy_.end(),
                                 [&](const Busy& other) { return other.unit == unit; });
  if (busy == busy_.end()) return;  // its gradients stay
  if (--busy->reductions == 0) busy_.erase(busy);
}

bool GradientFrames::Quiet(UnitId unit) const {
  const memory::Extent mine = *extents_[unit];
  return std::none_of(busy_.begin(), busy_.end(), [&](const Busy& other) {
    return other.extent.offset < mine.offset + mine.bytes &&
           mine.offset < other.extent.offset + other.extent.bytes;
  });
}

}  // namespace zerohold::engine
