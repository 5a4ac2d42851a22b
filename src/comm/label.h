// What the verbs share inside the room: labels without allocation, and the granularity of scratch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "src/comm/communicator.h"

namespace zerohold::comm {

// Enough for labels without very long names; longer ones are cut.
inline constexpr int kLabelBytes = 104;

// Writes the label as ToString does, cut to fit and ended by a zero. Returns its whole length.
size_t FormatLabel(const Label& label, std::span<char> out);

// Every rank's addends in the scratch begin at a cache line.
inline constexpr int64_t kScratchAlignBytes = 64;

}  // namespace zerohold::comm
