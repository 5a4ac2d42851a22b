// The learned order of acquires that prefetch follows. A pass is recorded as it happens; the next
// pass expects the same. Pure.
//
// Threads: one owner.
#pragma once

#include <cstdint>
#include <vector>

#include "zerohold/tensor.h"

namespace zerohold::engine {

class Route {
 public:
  // A new pass begins; the one before becomes what is expected, if it went anywhere.
  void BeginPass();
  // The trainer acquires a unit. A unit that is not the expected one moves the position to its next
  // place in the expected order, or, if it has none, leaves it; `changes` counts both.
  void Acquired(UnitId unit);
  // The unit that is expected `ahead` acquires after the last one (0 is the next); -1 when none is.
  UnitId Expected(int64_t ahead) const;
  // Acquires until `unit` is expected again; INT64_MAX when it is not.
  int64_t Distance(UnitId unit) const;
  int64_t changes() const { return changes_; }
  // First unit of the pass at hand; -1 before any.
  UnitId first() const { return recorded_.empty() ? -1 : recorded_.front(); }

 private:
  std::vector<UnitId> expected_;
  std::vector<UnitId> recorded_;
  size_t position_ = 0;  // in expected_, of the next acquire
  int64_t changes_ = 0;
};

}  // namespace zerohold::engine
