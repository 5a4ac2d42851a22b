// Reads and writes any element range of any state, wherever and in whatever form its owners hold
// it.
//
// Threads: one at a time, between steps.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <span>
#include <vector>

#include "optim/engine/model_memory.h"
#include "optim/kernels/masters.h"
#include "src/comm/communicator.h"
#include "src/layout/layout.h"
#include "zerohold/engine.h"

namespace zerohold::engine {

// Elements of one flat space.
struct StateRange {
  StateKind state;
  int32_t space;
  layout::Range range;
};

class StateAccess {
 public:
  // Both outlive it.
  StateAccess(const layout::Layout& layout, const ModelMemory& memory, MasterForm master);

  // Fills `out` on every rank. Collective.
  absl::Status Read(comm::Communicator& communicator, const StateRange& what,
                    std::span<float> out) const;
  // Takes this rank's part of `values`, which are the same on every rank; a master's copies are
  // rounded anew.
  void Write(const StateRange& what, std::span<const float> values) const;
  // The masters, and what is held of the copies, become what `full`, the whole space in its dtype,
  // says. It may be the copy itself.
  void Adopt(int32_t space, const std::byte* full) const;
  // Whether all of what this rank holds of it is finite.
  bool HeldFinite(const StateRange& what) const;

 private:
  void ReadHeld(const StateRange& what, layout::Range part, int64_t held, float* out) const;
  static void SetCopy(std::span<const float> values, kernels::WeightForm form, std::byte* copy);
  std::byte* MasterAt(const SpaceMemory& space, int64_t held) const;
  kernels::WeightForm Form(const SpaceMemory& space) const;

  const layout::Layout& layout_;
  const ModelMemory& memory_;
  const MasterForm master_;
};

}  // namespace zerohold::engine
