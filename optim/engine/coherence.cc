// Sparse hashes of compute copies.
#include "optim/engine/coherence.h"

#include <algorithm>
#include <span>

#include "src/base/align.h"
#include "src/base/hash.h"

namespace zerohold::engine {

Coherence::Coherence(const layout::Layout& layout)
    : layout_(layout), lines_(layout.spaces().size()) {}

// Spaces are whole blocks of 256 elements, so every stride that begins in one has a whole line.
uint64_t Coherence::HashLine(const std::byte* copy, int64_t line) {
  return base::Hash(std::span(copy + line * kStrideBytes, kLineBytes));
}

// The table grows with what is there: a model that has no room is told so before.
void Coherence::Remember(int32_t space, const std::byte* copy) {
  const layout::FlatSpace& flat = layout_.spaces()[space];
  std::vector<uint64_t>& lines = lines_[space];
  lines.resize(base::CeilDiv(flat.elems * SizeOf(flat.dtype), kStrideBytes));
  for (size_t i = 0; i < lines.size(); ++i) lines[i] = HashLine(copy, static_cast<int64_t>(i));
}

ParameterId Coherence::FindChanged(int32_t space, const std::byte* copy) const {
  const std::vector<uint64_t>& lines = lines_[space];
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i] == HashLine(copy, static_cast<int64_t>(i))) continue;
    const layout::FlatSpace& flat = layout_.spaces()[space];
    const int64_t elem = static_cast<int64_t>(i) * kStrideBytes / SizeOf(flat.dtype);
    const auto after =
        std::ranges::upper_bound(flat.parameters, elem, {}, &layout::FlatParameter::begin);
    return std::prev(after)->id;
  }
  return -1;
}

}  // namespace zerohold::engine
