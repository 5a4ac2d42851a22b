// Sizes as people write them.
#pragma once

#include <cstdint>
#include <string>

#include "zerohold/options.h"
#include "zerohold/status.h"

namespace zerohold::train {

// A number, also with a fraction, and a unit in any case: none or B, KB, MB, GB, TB (powers of
// 1000), KiB, MiB, GiB, TiB (powers of 1024), all without the B too. What a fraction of a
// unit leaves of a byte is dropped. Errors: InvalidArgument with the text and an example.
StatusOr<int64_t> ParseSize(const std::string& text);

// A size, or a percentage of all there is, as 25%. Errors: as above.
StatusOr<Budget> ParseBudget(const std::string& text);

}  // namespace zerohold::train
