#include "src/memory/host_buffer.h"

#include <utility>

#include "src/base/status_macros.h"

namespace zerohold::memory {

absl::StatusOr<HostBuffer> HostBuffer::Allocate(int64_t bytes, MemoryKind kind, Ledger* ledger) {
  HostBuffer buffer;
  ZH_ASSIGN_OR_RETURN(buffer.arena_, AddressArena::Reserve(bytes, kind, ledger));
  ZH_RETURN_IF_ERROR(buffer.arena_.AttachPrivate(0, bytes));
  return buffer;
}

}  // namespace zerohold::memory
