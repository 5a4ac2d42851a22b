// Counts what is allocated, where it is allocated: what Engine::Memory tells. Any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "zerohold/stats.h"

namespace zerohold::memory {

class Ledger {
 public:
  void Add(Tier tier, MemoryKind kind, int64_t bytes);  // negative gives back
  MemoryStats Read() const;

 private:
  std::array<std::array<std::atomic<int64_t>, static_cast<int>(MemoryKind::kCount)>,
             static_cast<int>(Tier::kCount)>
      bytes_{};
};

}  // namespace zerohold::memory
