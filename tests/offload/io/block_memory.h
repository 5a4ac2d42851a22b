// Page-aligned memory with contents that tell where they came from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "src/base/align.h"

namespace zerohold::io {

inline constexpr int64_t kBlock = base::kPageBytes;

class BlockMemory {
 public:
  explicit BlockMemory(int64_t blocks)
      : blocks_(blocks),
        bytes_(static_cast<std::byte*>(std::aligned_alloc(kBlock, blocks * kBlock))) {
    std::memset(bytes_.get(), 0, blocks * kBlock);
  }

  std::byte* block(int64_t number) { return bytes_.get() + number * kBlock; }
  std::span<std::byte> all() { return {bytes_.get(), static_cast<size_t>(blocks_ * kBlock)}; }
  // Every 8 bytes of the block from `value` on.
  void Fill(int64_t number, uint64_t value) {
    for (int64_t i = 0; i < kBlock; i += 8, ++value) std::memcpy(block(number) + i, &value, 8);
  }
  bool Holds(int64_t number, uint64_t value) {
    for (int64_t i = 0; i < kBlock; i += 8, ++value) {
      if (std::memcmp(block(number) + i, &value, 8) != 0) return false;
    }
    return true;
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  int64_t blocks_;
  std::unique_ptr<std::byte, Free> bytes_;
};

}  // namespace zerohold::io
