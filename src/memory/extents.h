// Which frames of a range are free. Pure: the same calls give the same answers on every rank.
// One thread at a time. Nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace zerohold::memory {

// Contiguous frames: bytes [offset, offset + bytes) of whatever range they were cut from.
struct Extent {
  int64_t offset = 0;
  int64_t bytes = 0;
  bool operator==(const Extent&) const = default;
};

class ExtentAllocator {
 public:
  // `total_bytes`: a multiple of base::kFrameBytes.
  explicit ExtentAllocator(int64_t total_bytes);

  // The lowest free extent of `bytes`, rounded up to frames, at or behind `from`, else the lowest
  // of all; nothing when no free extent is as long. 0 bytes are the empty extent, always there.
  std::optional<Extent> Allocate(int64_t bytes, int64_t from = 0);
  // Gives back what Allocate gave, or a part of it in whole frames.
  void Free(const Extent& extent);

 private:
  int64_t total_bytes_;
  int64_t free_bytes_;
  std::vector<Extent> free_;  // by offset; no two touch, none is empty
};

}  // namespace zerohold::memory
