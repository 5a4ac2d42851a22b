#include "src/memory/ledger.h"

namespace zerohold::memory {

void Ledger::Add(Tier tier, MemoryKind kind, int64_t bytes) {
  bytes_[static_cast<int>(tier)][static_cast<int>(kind)].fetch_add(bytes,
                                                                   std::memory_order_relaxed);
}

MemoryStats Ledger::Read() const {
  MemoryStats stats;
  for (size_t tier = 0; tier < bytes_.size(); ++tier) {
    for (size_t kind = 0; kind < bytes_[tier].size(); ++kind) {
      stats.bytes[tier][kind] = bytes_[tier][kind].load(std::memory_order_relaxed);
    }
  }
  return stats;
}

}  // namespace zerohold::memory
