// Counters that any thread adds to and the engine folds once a step.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace zerohold::telemetry {

// One counter per value of an enum that ends with kCount.
template <typename Enum>
class Counters {
 public:
  static constexpr int kSize = static_cast<int>(Enum::kCount);

  void Add(Enum which, int64_t amount) {
    values_[static_cast<int>(which)].fetch_add(amount, std::memory_order_relaxed);
  }
  // Returns all values and sets them to zero.
  std::array<int64_t, kSize> Take() {
    std::array<int64_t, kSize> out;
    for (int i = 0; i < kSize; ++i) out[i] = values_[i].exchange(0, std::memory_order_relaxed);
    return out;
  }

 private:
  std::array<std::atomic<int64_t>, kSize> values_{};
};

}  // namespace zerohold::telemetry
