// Files that lie in memory: their space is taken at once, or refused.
#pragma once

#include <cstdint>

namespace zerohold::memory {

// Takes [0, bytes) of an empty file in memory, which else grows happily and faults when touched.
// Returns 0 or an errno; EFBIG beyond what this process may make a file (`ulimit -f`).
int ReserveFile(int descriptor, int64_t bytes);

}  // namespace zerohold::memory
