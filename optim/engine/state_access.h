// Reads and writes any element range of any state, wherever its owners are.
//
// Threads: one at a time, between steps.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <span>
#include <vector>

#include "optim/engine/model_memory.h"
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

// Fills `out` on every rank. Collective.
absl::Status ReadState(comm::Communicator& communicator, const layout::Layout& layout,
                       const ModelMemory& memory, const StateRange& what, std::span<float> out);

// Takes this rank's part of `values`, which are the same on every rank. Not collective.
void WriteState(const layout::Layout& layout, const ModelMemory& memory, const StateRange& what,
                std::span<const float> values);

}  // namespace zerohold::engine
