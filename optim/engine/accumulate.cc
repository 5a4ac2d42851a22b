// One loop for each dtype.
#include "optim/engine/accumulate.h"

#include "src/base/convert.h"

namespace zerohold::engine {
namespace {

template <typename Stored, typename Widen>
void Loop(const std::byte* gradient, int64_t elems, bool add, float* __restrict sums, Widen widen) {
  const Stored* __restrict from = reinterpret_cast<const Stored*>(gradient);
  if (add) {
    for (int64_t i = 0; i < elems; ++i) sums[i] = sums[i] + widen(from[i]);
  } else {
    for (int64_t i = 0; i < elems; ++i) sums[i] = widen(from[i]);
  }
}

}  // namespace

void Accumulate(const std::byte* gradient, DType dtype, int64_t elems, bool add, float* sums) {
  switch (dtype) {
    case DType::kFloat32:
      return Loop<float>(gradient, elems, add, sums, [](float value) { return value; });
    case DType::kBFloat16:
      return Loop<uint16_t>(gradient, elems, add, sums,
                            [](uint16_t bits) { return base::BFloat16ToFloat(bits); });
    case DType::kFloat16:
      return Loop<uint16_t>(gradient, elems, add, sums,
                            [](uint16_t bits) { return base::Float16ToFloat(bits); });
  }
}

}  // namespace zerohold::engine
