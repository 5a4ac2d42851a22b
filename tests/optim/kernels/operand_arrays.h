// Operands of an update for tests: four arrays, aligned as the kernels want them, guard words
// around each.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "optim/kernels/update.h"

namespace zerohold::kernels {

inline uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

// Bit for bit, save that any NaN equals any NaN.
inline bool SameBits(float a, float b) { return BitsOf(a) == BitsOf(b) || (a != a && b != b); }

class OperandArrays {
 public:
  explicit OperandArrays(int64_t elems) : elems_(elems) {
    for (std::vector<float>& memory : memory_) {
      memory.assign(static_cast<size_t>(elems) + kGuardElems + 2 * kAlignElems, kGuard);
    }
  }

  float* master() { return Aligned(0); }
  float* moment1() { return Aligned(1); }
  float* moment2() { return Aligned(2); }
  float* gradient() { return Aligned(3); }
  int64_t elems() const { return elems_; }

  void Update(UpdateFunction update, const UpdateConstants& constants) {
    update(constants, {master(), moment1(), moment2(), gradient(), elems_});
  }

  bool GuardsIntact() {
    for (int i = 0; i < 4; ++i) {
      const float* const begin = Aligned(i);
      for (const float& word : memory_[i]) {
        const bool inside = &word >= begin && &word < begin + elems_;
        if (!inside && word != kGuard) return false;
      }
    }
    return true;
  }

 private:
  static constexpr float kGuard = 12345.0f;
  static constexpr int64_t kAlignElems = 16;  // 64 bytes
  static constexpr int64_t kGuardElems = 64;  // behind the operands, more than the widest vector

  // The first aligned place that leaves a guard of a vector in front.
  float* Aligned(int which) {
    const auto address = reinterpret_cast<uintptr_t>(memory_[which].data());
    const uintptr_t skip = (64 - address % 64) % 64 / sizeof(float);
    return memory_[which].data() + skip + kAlignElems;
  }

  int64_t elems_;
  std::vector<float> memory_[4];
};

}  // namespace zerohold::kernels
