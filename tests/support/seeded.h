// Values and gradients that differ everywhere, through plain arithmetic: for tests that compare
// bits.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "tests/support/trainer.h"

namespace zerohold::testing {

inline float SeededValue(ParameterId id, int64_t i) {
  return std::sin(static_cast<float>(id * 1000 + i));
}

// Depends on rank, values and step.
inline GradientFunction SeededGradient(int rank, int step) {
  return [=](ParameterId id, std::span<const float> values, std::span<float> gradient) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      const auto phase = static_cast<float>((i * 7 + id * 13 + rank * 5 + step * 3) % 97);
      gradient[i] += values[i] * 0.1f + 0.01f * (phase - 48.0f);
    }
  };
}

}  // namespace zerohold::testing
