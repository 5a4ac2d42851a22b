// The addresses that the trainer sees, and the memory under them: what stays, and the frames that
// come and go. All of it is one slice of the node's shared segment.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>

#include "src/base/notice.h"
#include "src/comm/communicator.h"
#include "src/layout/layout.h"
#include "src/memory/address_arena.h"
#include "src/memory/frame_pool.h"
#include "src/memory/ledger.h"

namespace zerohold::engine {

struct Arenas {
  memory::AddressArena parameters;
  memory::AddressArena gradients;
  std::unique_ptr<memory::FramePool> parameter_frames;
  std::unique_ptr<memory::FramePool> gradient_frames;
};

// A node's ranks put their memory into one segment that the lowest of them makes. Where shared
// memory has no room it is private memory, and `notice` says so once. Collective. Errors, the same
// on all ranks: ResourceExhausted with asked and available.
absl::StatusOr<Arenas> CreateArenas(comm::Communicator& communicator, const layout::Layout& layout,
                                    int64_t parameter_frame_bytes, int64_t gradient_frame_bytes,
                                    memory::Ledger* ledger, const base::NoticeSink& notice);

}  // namespace zerohold::engine
