// Private host memory of one owner: aligned to 2 MiB, zeroed, present before Allocate returns, in
// huge pages where the kernel gives them, not inherited by forked children, counted in the ledger.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "src/memory/address_arena.h"
#include "src/memory/ledger.h"

namespace zerohold::memory {

class HostBuffer {
 public:
  // `ledger` outlives the buffer. 0 bytes is legal: data() is null.
  // Errors: ResourceExhausted with asked and available bytes.
  static absl::StatusOr<HostBuffer> Allocate(int64_t bytes, MemoryKind kind, Ledger* ledger);
  HostBuffer() = default;

  void* data() const { return arena_.base(); }
  int64_t bytes() const { return arena_.bytes(); }

 private:
  AddressArena arena_;  // attached in full
};

}  // namespace zerohold::memory
