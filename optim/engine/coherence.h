// Tells when a copy of a weight is not what the engine last put there: a sparse hash, one cache
// line in every 4 KiB, taken when the engine writes it and again before it counts.
//
// Threads: one at a time for one space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/layout/layout.h"

namespace zerohold::engine {

class Coherence {
 public:
  explicit Coherence(const layout::Layout& layout);

  // `copy` is the whole space in its dtype.
  void Remember(int32_t space, const std::byte* copy);
  // The parameter of the first line that has changed since; -1 for none, and before any.
  ParameterId FindChanged(int32_t space, const std::byte* copy) const;

 private:
  static constexpr int64_t kStrideBytes = 4096;
  static constexpr int64_t kLineBytes = 64;

  static uint64_t HashLine(const std::byte* copy, int64_t line);

  const layout::Layout& layout_;
  std::vector<std::vector<uint64_t>> lines_;  // by space, by stride
};

}  // namespace zerohold::engine
