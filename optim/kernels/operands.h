// What every loop over elements is called with, on any device. C++17, and light on purpose: what
// this header includes is compiled for AVX-512 too, where a static initialiser or an inline
// function of a library would be code that older processors cannot run.
#pragma once

#include <cstdint>

namespace zerohold::kernels {

// What a rule needs besides its operands, made once on the host, in double, and rounded to fp32.
// The meaning of each value is the rule's own (its element header).
struct UpdateConstants {
  float values[12] = {};
};

// Arrays of `elems`, aligned to 64 bytes, not overlapping. A moment that the rule does not keep may
// be null.
struct UpdateOperands {
  // float, the master; uint16_t, its low bits, in the form of a remainder; null where the copy is
  // the master.
  void* master = nullptr;
  // What the trainer computes with: float, which is the master then, or uint16_t for bf16 and fp16.
  void* copy = nullptr;
  float* moment1 = nullptr;
  float* moment2 = nullptr;
  const void* gradient = nullptr;  // float, or uint16_t for bf16 and fp16
  int64_t elems = 0;
};

using UpdateFunction = void (*)(const UpdateConstants& constants, const UpdateOperands& operands);

}  // namespace zerohold::kernels
