// Where the model's bytes are on this rank: the arenas of parameters and gradients, whose frames
// are pieces of the node's shared segment, and the optimizer states of this rank's records.
//
// Threads: made once; then what the engine's order of operations says about each range.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/notice.h"
#include "src/comm/communicator.h"
#include "src/layout/layout.h"
#include "src/memory/address_arena.h"
#include "src/memory/host_buffer.h"
#include "src/memory/ledger.h"

namespace zerohold::engine {

// A node's ranks put their arenas into one segment that the lowest of them makes. Where shared
// memory has no room the arenas are private memory, and `notice` says so once. Collective. Errors,
// the same on all ranks: ResourceExhausted with asked and available.
struct Arenas {
  memory::AddressArena parameters;
  memory::AddressArena gradients;
};
absl::StatusOr<Arenas> CreateArenas(comm::Communicator& communicator, const layout::Layout& layout,
                                    memory::Ledger* ledger, const base::NoticeSink& notice);

class ModelMemory {
 public:
  // `layout` and `ledger` outlive it. Collective.
  static absl::StatusOr<std::unique_ptr<ModelMemory>> Create(comm::Communicator& communicator,
                                                             const layout::Layout& layout,
                                                             memory::Ledger* ledger,
                                                             const base::NoticeSink& notice);

  // First element of a flat space in the arena.
  float* Parameters(int32_t space) const;
  float* Gradients(int32_t space) const;
  // A record's arrays, elems of it each.
  float* Moment1(int64_t record) const { return moment1_ + record_begin_[record]; }
  float* Moment2(int64_t record) const { return moment2_ + record_begin_[record]; }

 private:
  explicit ModelMemory(const layout::Layout& layout) : layout_(layout) {}

  const layout::Layout& layout_;
  Arenas arenas_;
  memory::HostBuffer moment1_buffer_;
  memory::HostBuffer moment2_buffer_;
  float* moment1_ = nullptr;
  float* moment2_ = nullptr;
  std::vector<int64_t> record_begin_;  // elements before each record
};

}  // namespace zerohold::engine
