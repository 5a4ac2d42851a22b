// What this process can still get, asked before memory is touched: a refusal can be mended, the
// kernel's out-of-memory killer can not.
#pragma once

#include <cstdint>
#include <string>

namespace zerohold::memory {

// Bytes that can be had without pushing anybody out; INT64_MAX when the kernel does not say. The
// smallest of: the node's memory with its free swap; and, for the control group of this process and
// each that it is in (a container's, a job's), what its limit leaves, where cached files count as
// free and swap does not. A moment's value. A test gives another root of the file system.
int64_t AvailableMemoryBytes(const std::string& root = "");

}  // namespace zerohold::memory
