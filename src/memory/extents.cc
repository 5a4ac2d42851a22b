#include "src/memory/extents.h"

#include <algorithm>

#include "src/base/align.h"
#include "src/base/check.h"

namespace zerohold::memory {

using base::kFrameBytes;

ExtentAllocator::ExtentAllocator(int64_t total_bytes)
    : total_bytes_(total_bytes), free_bytes_(total_bytes) {
  ZH_CHECK(total_bytes >= 0 && total_bytes % kFrameBytes == 0, total_bytes);
  // At worst every other frame is free.
  free_.reserve(base::CeilDiv(total_bytes, 2 * kFrameBytes) + 1);
  if (total_bytes > 0) free_.push_back({0, total_bytes});
}

std::optional<Extent> ExtentAllocator::Allocate(int64_t bytes, int64_t from) {
  ZH_CHECK(bytes >= 0 && from >= 0 && from % kFrameBytes == 0, bytes, from);
  if (bytes > free_bytes_) return std::nullopt;
  const int64_t wanted = base::AlignUp(bytes, kFrameBytes);
  if (wanted == 0) return Extent{};
  const auto begin_in = [&](const Extent& free) { return std::max(free.offset, from); };
  const auto found = std::ranges::find_if(free_, [&](const Extent& free) {
    return free.offset + free.bytes - begin_in(free) >= wanted;
  });
  if (found == free_.end()) return from > 0 ? Allocate(bytes, 0) : std::nullopt;
  const Extent extent{begin_in(*found), wanted};
  const Extent behind{extent.offset + wanted,
                      found->offset + found->bytes - extent.offset - wanted};
  found->bytes = extent.offset - found->offset;
  const auto next = found->bytes == 0 ? free_.erase(found) : found + 1;
  if (behind.bytes > 0) free_.insert(next, behind);
  free_bytes_ -= wanted;
  return extent;
}

void ExtentAllocator::Free(const Extent& extent) {
  const auto [offset, bytes] = extent;
  ZH_CHECK(offset >= 0 && offset % kFrameBytes == 0, offset);
  ZH_CHECK(bytes >= 0 && bytes % kFrameBytes == 0, bytes);
  ZH_CHECK(offset <= total_bytes_ && bytes <= total_bytes_ - offset, offset, bytes, total_bytes_);
  if (bytes == 0) return;
  const auto after = std::ranges::upper_bound(free_, offset, {}, &Extent::offset);
  const auto before = after == free_.begin() ? free_.end() : after - 1;
  const bool joins_before = before != free_.end() && before->offset + before->bytes == offset;
  const bool joins_after = after != free_.end() && offset + bytes == after->offset;
  ZH_CHECK(before == free_.end() || before->offset + before->bytes <= offset, offset, bytes);
  ZH_CHECK(after == free_.end() || offset + bytes <= after->offset, offset, bytes);
  free_bytes_ += bytes;
  if (joins_before) {
    before->bytes += bytes;
    if (!joins_after) return;
    before->bytes += after->bytes;
    free_.erase(after);
  } else if (joins_after) {
    after->offset = offset;
    after->bytes += bytes;
  } else {
    free_.insert(after, extent);
  }
}

}  // namespace zerohold::memory
