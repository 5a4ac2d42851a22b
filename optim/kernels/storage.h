// How a loop reads its gradients, and reads and writes its weights. C++17, and as light as
// operands.h.
#pragma once

#include <cstdint>

#include "optim/kernels/element/master_form.h"
#include "src/base/convert.h"
#include "src/base/host_device.h"

// One row each: a value of DType (in that enum's order), its type in the arrays, its conversions.
#define ZH_ELEMENT_TYPES(ROW) \
  ROW(kFloat32, Float32)      \
  ROW(kBFloat16, BFloat16)    \
  ROW(kFloat16, Float16)

// A DType of the copy beside an fp32 master, or the form of two halves.
#define ZH_WEIGHT_FORMS(ROW)              \
  ROW(kFloat32, CopyIsMaster)             \
  ROW(kBFloat16, MasterAndCopy<BFloat16>) \
  ROW(kFloat16, MasterAndCopy<Float16>)   \
  ROW(kRemainder, CopyAndRemainder)

namespace zerohold::kernels {

struct Float32 {
  using Stored = float;
  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static float Widen(float stored) { return stored; }
};

struct BFloat16 {
  using Stored = uint16_t;
  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static float Widen(uint16_t stored) {
    return base::BFloat16ToFloat(stored);
  }
  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static uint16_t Round(float value) {
    return base::FloatToBFloat16(value);
  }
};

struct Float16 {
  using Stored = uint16_t;
  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static float Widen(uint16_t stored) {
    return base::Float16ToFloat(stored);
  }
  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static uint16_t Round(float value) {
    return base::FloatToFloat16(value);
  }
};

// A form has the types of two arrays, and gets and sets the master of element i in them.

// The trainer computes with the fp32 master itself. `master` is null, and not touched.
struct CopyIsMaster {
  using Copy = float;
  using Master = float;
  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static float Get(const Copy* copy, const Master*, int64_t i) {
    return copy[i];
  }
  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static void Set(float value, Copy* copy, Master*, int64_t i) {
    copy[i] = value;
  }
};

// The copy is written and never read.
template <typename Type>
struct MasterAndCopy {
  using Copy = typename Type::Stored;
  using Master = float;
  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static float Get(const Copy*, const Master* master, int64_t i) {
    return master[i];
  }
  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static void Set(float value, Copy* copy, Master* master,
                                                  int64_t i) {
    master[i] = value;
    copy[i] = Type::Round(value);
  }
};

struct CopyAndRemainder {
  using Copy = uint16_t;
  using Master = uint16_t;
  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static float Get(const Copy* copy, const Master* low, int64_t i) {
    return JoinMaster(copy[i], low[i]);
  }
  ZH_HOST_DEVICE ZH_ALWAYS_INLINE static void Set(float value, Copy* copy, Master* low, int64_t i) {
    const SplitFloat split = SplitMaster(value);
    copy[i] = split.copy;
    low[i] = split.low;
  }
};

// DType for those who must not include the front door; update.cc checks that the two agree.
enum class TypeRow {
#define ZH_VALUE(value, Type) value,
  ZH_ELEMENT_TYPES(ZH_VALUE)
#undef ZH_VALUE
};

// DType of the copy, or kRemainder.
enum class FormRow {
#define ZH_VALUE(value, Form) value,
  ZH_WEIGHT_FORMS(ZH_VALUE)
#undef ZH_VALUE
};

}  // namespace zerohold::kernels
