// Which framed units have their parameters in a frame, and which come and go next. Decisions alone:
// who gathers and moves is told by the lists.
//
// Decides only when the trainer calls, from the calls so far, so that every rank decides the same,
// whatever is finished by then. Threads: one owner.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "optim/engine/route.h"
#include "src/layout/layout.h"
#include "src/memory/extents.h"

namespace zerohold::engine {

// This unit's parameters are to be gathered into this extent of the frames.
struct Gather {
  UnitId unit;
  memory::Extent extent;
};

// Which route an acquire belongs to; first values and loaded weights belong to none.
enum class Pass : uint8_t { kTraining, kEvaluation, kNone };

class Residency {
 public:
  // `layout` and `units` outlive it.
  Residency(const layout::Layout& layout, std::span<const UnitSpec> units, int64_t frame_bytes);

  // Follows the routes that another one has learned; their units come first in this one's list.
  void InheritRoutes(const Residency& before);

  // Of what decides, besides the calls: ranks of one hash decide alike.
  uint64_t HashOfNeeds() const;
  // Ranks decide differently: nothing is kept between acquires, or prefetched.
  void set_on_demand(bool on_demand) { on_demand_ = on_demand; }

  // A pass over the units begins, for training or evaluation, which have a route each.
  void BeginPass(Pass pass);
  // Pins the unit; `gather` gets it if it is away. Errors: ResourceExhausted naming the unit, what
  // is pinned and the option.
  absl::Status Acquire(UnitId unit, Pass pass, std::vector<Gather>* gathers);
  void Release(UnitId unit);
  // Units that the route expects next, as far as frames reach.
  void Prefetch(std::vector<Gather>* gathers);
  // Values have changed: frames that are not pinned are empty.
  void InvalidateAll();

  bool Pinned(UnitId unit) const { return states_[unit].pins > 0; }
  std::optional<memory::Extent> ExtentOf(UnitId unit) const { return states_[unit].extent; }
  int64_t route_changes() const { return training_.changes() + evaluation_.changes(); }

 private:
  struct State {
    std::optional<memory::Extent> extent;
    int pins = 0;
    int64_t last_use = 0;
  };

  bool Framed(UnitId unit) const { return layout_.units()[unit].parameters_framed; }
  // Finds room, at the cost of unpinned units that are needed later than `distance`.
  std::optional<memory::Extent> FindRoom(UnitId unit, int64_t distance);
  // The unpinned unit that is needed last; -1 for none that is needed later than `distance`.
  UnitId Victim(int64_t distance) const;
  void Invalidate(UnitId unit);  // see InvalidateAll
  void Drop(UnitId unit);

  const layout::Layout& layout_;
  const std::span<const UnitSpec> units_;
  memory::ExtentAllocator allocator_;
  const int64_t frame_bytes_;
  std::vector<State> states_;
  Route training_;
  Route evaluation_;
  Route* route_ = &training_;
  int64_t clock_ = 0;
  bool on_demand_ = false;
};

}  // namespace zerohold::engine
