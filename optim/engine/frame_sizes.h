// How many bytes of frames a rank has for parameters and gradients that come and go: a pure
// function of options and sizes.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <span>

#include "src/layout/layout.h"
#include "zerohold/options.h"

namespace zerohold::engine {

// Bytes; `staging` is what records need besides.
struct FrameSizes {
  int64_t parameters = 0;
  int64_t gradients = 0;
  int64_t staging = 0;
};

// `before`: what there is already, and stays.
FrameSizes SizeFrames(const EngineOptions& options, const layout::Layout& layout,
                      std::span<const UnitSpec> units, const FrameSizes& before);

// InvalidArgument where a unit does not fit into what was asked, ResourceExhausted where all does
// not into the device's budget; naming the option and what is needed.
absl::Status CheckFrames(const EngineOptions& options, const layout::Layout& layout,
                         std::span<const UnitSpec> units, const FrameSizes& sizes);

}  // namespace zerohold::engine
