// What the trainer told, checked once, with ids in place of names. Pure, like the whole room.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "zerohold/tensor.h"

namespace zerohold::layout {

struct CheckedInput {
  std::vector<int64_t> elems;                   // of each parameter
  std::vector<std::vector<ParameterId>> units;  // the parameters of each unit, in its order
  std::vector<std::vector<ParameterId>> uses;   // those of other units that each uses
};

// Errors: as Layout::Create says.
absl::StatusOr<CheckedInput> CheckInput(std::span<const ParameterSpec> parameters,
                                        std::span<const UnitSpec> units);

}  // namespace zerohold::layout
