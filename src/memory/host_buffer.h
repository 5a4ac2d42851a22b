// Private host memory of one owner: page-aligned, zeroed, present (touched) before Allocate returns, in
// huge pages where the kernel gives them, not inherited by forked children, counted in the ledger.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

#include "src/memory/ledger.h"

namespace zerohold::memory {

class HostBuffer {
 public:
  // `ledger` outlives the buffer. 0 bytes is legal: data() is null.
  // Errors: ResourceExhausted with asked and available bytes.
  static absl::StatusOr<HostBuffer> Allocate(int64_t bytes, MemoryKind kind, Ledger* ledger);
  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer();

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  MemoryKind kind_ = MemoryKind::kStaging;
  Ledger* ledger_ = nullptr;
};

}  // namespace zerohold::memory
