// Operands of an update for tests: arrays of the types of a shape, aligned as the kernels want
// them, guard bytes around each.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "optim/kernels/masters.h"
#include "optim/kernels/update.h"
#include "src/base/convert.h"

namespace zerohold::kernels {

constexpr UpdateRule kRules[] = {UpdateRule::kAdamW, UpdateRule::kAdam, UpdateRule::kSgd,
                                 UpdateRule::kLion, UpdateRule::kAdagrad};
constexpr InstructionSet kSets[] = {InstructionSet::kBaseline, InstructionSet::kV3,
                                    InstructionSet::kV4, InstructionSet::kBest};
constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr WeightForm kForms[] = {{DType::kFloat32, MasterForm::kFloat32},
                                 {DType::kBFloat16, MasterForm::kFloat32},
                                 {DType::kFloat16, MasterForm::kFloat32},
                                 {DType::kBFloat16, MasterForm::kRemainder}};

// Bit for bit, save that any NaN equals any NaN.
inline bool SameBits(float a, float b) {
  return base::FloatBits(a) == base::FloatBits(b) || (a != a && b != b);
}

// Bytes of `size` a piece, 64 guard bytes in front and 256, more than the widest vector, behind.
class GuardedArray {
 public:
  GuardedArray(int64_t elems, int64_t size)
      : bytes_(elems * size), memory_(static_cast<size_t>(bytes_) + 64 + 64 + 256, kGuard) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    begin_ = static_cast<int64_t>(128 - address % 64);
  }
  // The guards' place depends on the address.
  GuardedArray(const GuardedArray&) = delete;
  GuardedArray& operator=(const GuardedArray&) = delete;

  template <typename T>
  T* As() {
    return reinterpret_cast<T*>(memory_.data() + begin_);
  }
  bool Intact() const {
    for (int64_t i = 0; i < static_cast<int64_t>(memory_.size()); ++i) {
      if ((i < begin_ || i >= begin_ + bytes_) && memory_[static_cast<size_t>(i)] != kGuard) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr uint8_t kGuard = 0x5a;

  int64_t bytes_;
  int64_t begin_;
  std::vector<uint8_t> memory_;
};

// Values of a type as fp32, and back.
inline float LoadAs(DType type, const void* array, int64_t i) {
  if (type == DType::kFloat32) return static_cast<const float*>(array)[i];
  const uint16_t bits = static_cast<const uint16_t*>(array)[i];
  return type == DType::kBFloat16 ? base::BFloat16ToFloat(bits) : base::Float16ToFloat(bits);
}

inline void StoreAs(DType type, float value, void* array, int64_t i) {
  if (type == DType::kFloat32) {
    static_cast<float*>(array)[i] = value;
  } else {
    static_cast<uint16_t*>(array)[i] =
        type == DType::kBFloat16 ? base::FloatToBFloat16(value) : base::FloatToFloat16(value);
  }
}

inline float RoundTo(DType type, float value) {
  float stored;
  StoreAs(type, value, &stored, 0);
  return LoadAs(type, &stored, 0);
}

// All masters, moments and gradients begin as 0.
class OperandArrays {
 public:
  OperandArrays(const UpdateShape& shape, int64_t elems)
      : shape_(shape),
        elems_(elems),
        master_(elems, MasterBytes(form())),
        copy_(elems, SizeOf(shape.copy)),
        moment1_(elems, sizeof(float)),
        moment2_(elems, sizeof(float)),
        gradient_(elems, SizeOf(shape.gradient)) {
    SetMasters(std::vector<float>(static_cast<size_t>(elems)));
    std::memset(moment1(), 0, static_cast<size_t>(elems) * sizeof(float));
    std::memset(moment2(), 0, static_cast<size_t>(elems) * sizeof(float));
    std::memset(gradient_.As<char>(), 0, static_cast<size_t>(elems * SizeOf(shape.gradient)));
  }

  const UpdateShape& shape() const { return shape_; }
  WeightForm form() const { return {shape_.copy, shape_.master}; }
  int64_t elems() const { return elems_; }
  float* moment1() { return moment1_.As<float>(); }
  float* moment2() { return moment2_.As<float>(); }

  void SetMasters(const std::vector<float>& values) {
    MastersFromFloat(values.data(), elems_, form(), master_.As<void>(), copy_.As<void>());
  }
  std::vector<float> Masters() {
    std::vector<float> values(static_cast<size_t>(elems_));
    MastersToFloat(master_.As<void>(), copy_.As<void>(), form(), elems_, values.data());
    return values;
  }
  // What a trainer without masters would have: its next step begins at the copy.
  void ForgetMasters() { MastersFromCopies(copy_.As<void>(), elems_, form(), master_.As<void>()); }
  float Copy(int64_t i) { return LoadAs(shape_.copy, copy_.As<void>(), i); }
  float Gradient(int64_t i) { return LoadAs(shape_.gradient, gradient_.As<void>(), i); }
  void SetGradient(int64_t i, float value) {
    StoreAs(shape_.gradient, value, gradient_.As<void>(), i);
  }

  // From `begin` on. What the rule does not keep is null, as it is for the engine.
  UpdateOperands Operands(int64_t begin, int64_t elems) {
    const RuleFacts& facts = *FactsOf(shape_.rule);
    const int64_t master_bytes = MasterBytes(form());
    return {.master = master_bytes == 0 ? nullptr : master_.As<char>() + begin * master_bytes,
            .copy = copy_.As<char>() + begin * SizeOf(shape_.copy),
            .moment1 = facts.moment1 ? moment1() + begin : nullptr,
            .moment2 = facts.moment2 ? moment2() + begin : nullptr,
            .gradient = gradient_.As<char>() + begin * SizeOf(shape_.gradient),
            .elems = elems};
  }

  void Update(InstructionSet set, const UpdateConstants& constants) {
    SelectUpdate(shape_, set)(constants, Operands(0, elems_));
  }
  // A step of `group`, its own learning rate.
  void Step(const GroupOptions& group, int64_t step, double gradient_scale = 1.0,
            InstructionSet set = InstructionSet::kBest) {
    Update(set, MakeConstants(shape_.rule, group, group.learning_rate, step, gradient_scale));
  }

  bool GuardsIntact() const {
    return master_.Intact() && copy_.Intact() && moment1_.Intact() && moment2_.Intact() &&
           gradient_.Intact();
  }

 private:
  const UpdateShape shape_;
  const int64_t elems_;
  GuardedArray master_;
  GuardedArray copy_;
  GuardedArray moment1_;
  GuardedArray moment2_;
  GuardedArray gradient_;
};

}  // namespace zerohold::kernels
