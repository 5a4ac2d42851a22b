// A reserved range of addresses under which memory is attached; the addresses never change. What is
// not attached faults at once when touched. Not inherited by forked children.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstdint>

#include "src/memory/ledger.h"
#include "src/memory/segment.h"

namespace zerohold::memory {

class AddressArena {
 public:
  // Reserves addresses, no memory; aligned to frames at both ends, so that a FramePool may attach
  // anywhere. 0 bytes is legal: base() is null. `ledger` outlives the arena.
  static absl::StatusOr<AddressArena> Reserve(int64_t bytes, MemoryKind kind, Ledger* ledger);
  AddressArena() = default;
  AddressArena(AddressArena&& other) noexcept;
  AddressArena& operator=(AddressArena&& other) noexcept;
  ~AddressArena();  // takes what a FramePool has attached with it

  // Attaches [segment_offset, +bytes) of the segment, or private zeroed memory, at `offset`; counts
  // `bytes` in the ledger. All multiples of the page size, except that `bytes` is rounded up to
  // pages for the mapping alone. Memory is present before it returns. Errors: ResourceExhausted
  // with asked and available bytes; the range then faults as before.
  absl::Status AttachShared(int64_t offset, int64_t bytes, const Segment& segment,
                            int64_t segment_offset);
  absl::Status AttachPrivate(int64_t offset, int64_t bytes);

  char* base() const { return base_; }
  int64_t bytes() const { return bytes_; }

 private:
  // Checks our own caller; returns `bytes` in whole pages.
  int64_t CheckedMapBytes(int64_t offset, int64_t bytes) const;
  void Count(int64_t bytes);

  char* base_ = nullptr;
  int64_t bytes_ = 0;
  int64_t attached_bytes_ = 0;
  MemoryKind kind_ = MemoryKind::kParameters;
  Ledger* ledger_ = nullptr;
  pid_t pid_ = 0;  // of the process that has the range
};

}  // namespace zerohold::memory
