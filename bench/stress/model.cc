#include "bench/stress/model.h"

#include <algorithm>
#include <bit>

#include "src/base/align.h"
#include "src/base/convert.h"

namespace zerohold::bench {
namespace {

constexpr int64_t kMostUnitElems = int64_t{4} << 20;
// The forward pass cannot hide what its first unit waits for: that should be a small part of it.
constexpr int64_t kFewestUnits = 16;
constexpr int kValueBits = 7;
// Of a gradient; those of all ranks sum to 8 bits and the sign, which is what bf16 has.
constexpr int kGradientBits = 8;

int64_t UnitsOf(int64_t params) {
  return std::max(std::min(params, kFewestUnits), base::CeilDiv(params, kMostUnitElems));
}

// Mixes what numbers a sequence (splitmix64), so that any two sequences differ.
uint64_t Mix(uint64_t key, int64_t number) {
  key += static_cast<uint64_t>(number) + 0x9e3779b97f4a7c15u;
  key = (key ^ (key >> 30)) * 0xbf58476d1ce4e5b9u;
  key = (key ^ (key >> 27)) * 0x94d049bb133111ebu;
  return key ^ (key >> 31);
}

// The upper `bits` of a counter times the golden ratio: a multiplication an element, which
// vectorizes and costs less than the memory that it writes.
float Value(uint32_t key, uint32_t index, int bits) {
  const auto value = static_cast<int32_t>((key + index * 0x9e3779b1u) >> (32 - bits));
  return static_cast<float>(value - (1 << (bits - 1))) * 0x1p-8f;
}

struct Float32 {
  using Stored = float;
  static float Load(float value) { return value; }
  static float Round(float value) { return value; }
};
struct BFloat16 {
  using Stored = uint16_t;
  static float Load(uint16_t value) { return base::BFloat16ToFloat(value); }
  static uint16_t Round(float value) { return base::FloatToBFloat16(value); }
};
struct Float16 {
  using Stored = uint16_t;
  static float Load(uint16_t value) { return base::Float16ToFloat(value); }
  static uint16_t Round(float value) { return base::FloatToFloat16(value); }
};

template <typename Type>
void AddAs(const TensorView& to, uint32_t key, int bits) {
  auto* const out = static_cast<typename Type::Stored*>(to.data);
  for (int64_t i = 0; i < to.elems; ++i) {
    out[i] = Type::Round(Type::Load(out[i]) + Value(key, static_cast<uint32_t>(i), bits));
  }
}

void Add(const TensorView& to, uint64_t key, int bits) {
  const auto short_key = static_cast<uint32_t>(key >> 32);
  if (to.dtype == DType::kFloat32) return AddAs<Float32>(to, short_key, bits);
  if (to.dtype == DType::kBFloat16) return AddAs<BFloat16>(to, short_key, bits);
  AddAs<Float16>(to, short_key, bits);
}

}  // namespace

StressModel::StressModel(int64_t params, DType type, int64_t of_seed)
    : StressModel(UnitsOf(params), base::CeilDiv(params, UnitsOf(params)), type, of_seed) {}

StressModel::StressModel(int64_t count, int64_t elems, DType type, int64_t of_seed)
    : units(count), unit_elems(elems), dtype(type), seed(of_seed) {
  for (int64_t i = 0; i < count; ++i) {
    ParameterSpec parameter;
    parameter.name = "weight." + std::to_string(i);
    parameter.shape = {elems};
    parameter.dtype = type;
    unit_specs.push_back({"unit." + std::to_string(i), {parameter.name}, {}});
    parameter_specs.push_back(std::move(parameter));
  }
}

StressModel StressModel::OneUnit() const { return {1, unit_elems, dtype, seed}; }

void AddFirstValues(const StressModel& model, int64_t unit, const TensorView& parameter) {
  Add(parameter, Mix(Mix(model.seed, 0), unit), kValueBits);
}

void AddGradient(const StressModel& model, const GradientOf& what, const TensorView& gradient) {
  const int rank_bits = std::bit_width(static_cast<unsigned>(what.world - 1));
  const uint64_t key = Mix(Mix(Mix(model.seed, what.step), what.unit), what.rank);
  Add(gradient, key, kGradientBits - rank_bits);
}

}  // namespace zerohold::bench
