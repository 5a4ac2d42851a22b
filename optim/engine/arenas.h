// The addresses that the trainer sees, and the memory under them: what stays, and the frames that
// come and go. What is made at one time is one slice of the node's shared segment, but for staging,
// which no peer reads.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "optim/engine/frame_sizes.h"
#include "src/base/notice.h"
#include "src/comm/communicator.h"
#include "src/layout/layout.h"
#include "src/memory/address_arena.h"
#include "src/memory/frame_pool.h"
#include "src/memory/ledger.h"

namespace zerohold::engine {

// Of one generation of units.
struct ArenaPair {
  memory::AddressArena parameters;
  memory::AddressArena gradients;
};

// Shared by the engines that follow each other over the same memory. Staging is for what moves
// between tiers.
struct Arenas {
  std::vector<std::shared_ptr<const ArenaPair>> generations;
  std::shared_ptr<memory::FramePool> parameter_frames;
  std::shared_ptr<memory::FramePool> gradient_frames;
  std::shared_ptr<const memory::AddressArena> staging;
};

// Who counts memory, and who is told of it.
struct MemoryBooks {
  memory::Ledger* ledger;
  const base::NoticeSink& notice;
};

// A node's ranks put their memory into one segment that the lowest of them makes. Where shared
// memory has no room it is private memory, and the notice says so once. `before` has the
// generations but the last, which is made, or all: it keeps them, and its pools where they are
// enough.
// Collective. Errors, the same on all ranks: ResourceExhausted with asked and available.
absl::StatusOr<Arenas> CreateArenas(comm::Communicator& communicator, const layout::Layout& layout,
                                    FrameSizes frames, const Arenas& before, MemoryBooks books);

}  // namespace zerohold::engine
