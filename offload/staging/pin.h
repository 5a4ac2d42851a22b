// Keeps memory from being paged out.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <span>

namespace zerohold::staging {

// Locks the pages until they are unmapped. Errors: ResourceExhausted with asked bytes, the limit
// (RLIMIT_MEMLOCK) and what raises it; the memory can be used all the same, but its pages may go.
absl::Status Pin(std::span<std::byte> memory);

}  // namespace zerohold::staging
