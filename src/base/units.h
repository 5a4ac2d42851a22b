// Bytes as people write and read them.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

namespace zerohold::base {

// In powers of 1024 with at most one decimal: "512 B", "64 MiB", "1.5 GiB".
std::string FormatBytes(int64_t bytes);

// A number and a unit: B (or none), KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of
// 1024), in any case, with or without a space: "64MB", "1.5 GiB". Fractions of a byte are dropped.
// Errors: InvalidArgument with the text and what is wrong with it.
absl::StatusOr<int64_t> ParseBytes(const std::string& text);

}  // namespace zerohold::base
