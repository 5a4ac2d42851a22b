// What this node can still give, asked before memory is touched: a refusal can be mended, the
// kernel's out-of-memory killer can not.
#pragma once

#include <cstdint>

namespace zerohold::memory {

// Memory that can be had without pushing anybody out, plus free swap, bytes; 0 when the kernel does
// not say. A moment's value, and the whole node's: a container's own limit may be lower.
int64_t AvailableMemoryBytes();

}  // namespace zerohold::memory
