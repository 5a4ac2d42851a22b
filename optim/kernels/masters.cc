// One loop for each form and direction.
#include "optim/kernels/masters.h"

#include <cstring>

#include "src/base/check.h"

namespace zerohold::kernels {
namespace {

template <typename Form>
void ToFloat(const void* master, const void* copy, int64_t elems, float* __restrict out) {
  const auto* from_master = static_cast<const typename Form::Master*>(master);
  const auto* from_copy = static_cast<const typename Form::Copy*>(copy);
  for (int64_t i = 0; i < elems; ++i) out[i] = Form::Get(from_copy, from_master, i);
}

template <typename Form>
void FromFloat(const float* __restrict in, int64_t elems, void* master, void* copy) {
  auto* __restrict to_master = static_cast<typename Form::Master*>(master);
  auto* __restrict to_copy = static_cast<typename Form::Copy*>(copy);
  for (int64_t i = 0; i < elems; ++i) Form::Set(in[i], to_copy, to_master, i);
}

template <typename Type>
void Widen(const void* copy, int64_t elems, void* master) {
  const auto* __restrict from = static_cast<const typename Type::Stored*>(copy);
  auto* __restrict to = static_cast<float*>(master);
  for (int64_t i = 0; i < elems; ++i) to[i] = Type::Widen(from[i]);
}

}  // namespace

FormRow FormOf(WeightForm form) {
  const bool remainder = form.master == MasterForm::kRemainder && form.copy != DType::kFloat32;
  ZH_CHECK(!remainder || form.copy == DType::kBFloat16, NameOf(form.copy));
  return remainder ? FormRow::kRemainder : static_cast<FormRow>(form.copy);
}

int64_t MasterBytes(WeightForm form) {
  const FormRow row = FormOf(form);
  if (row == FormRow::kFloat32) return 0;
  return row == FormRow::kRemainder ? 2 : 4;
}

void MastersToFloat(const void* master, const void* copy, WeightForm form, int64_t elems,
                    float* out) {
  switch (FormOf(form)) {
#define ZH_CASE(value, ...) \
  case FormRow::value:      \
    return ToFloat<__VA_ARGS__>(master, copy, elems, out);
    ZH_WEIGHT_FORMS(ZH_CASE)
#undef ZH_CASE
  }
}

void MastersFromFloat(const float* in, int64_t elems, WeightForm form, void* master, void* copy) {
  switch (FormOf(form)) {
#define ZH_CASE(value, ...) \
  case FormRow::value:      \
    return FromFloat<__VA_ARGS__>(in, elems, master, copy);
    ZH_WEIGHT_FORMS(ZH_CASE)
#undef ZH_CASE
  }
}

void MastersFromCopies(const void* copy, int64_t elems, WeightForm form, void* master) {
  switch (FormOf(form)) {
    case FormRow::kFloat32:
      return;
    case FormRow::kBFloat16:
      return Widen<BFloat16>(copy, elems, master);
    case FormRow::kFloat16:
      return Widen<Float16>(copy, elems, master);
    case FormRow::kRemainder:
      std::memset(master, 0, static_cast<size_t>(elems) * sizeof(uint16_t));
  }
}

}  // namespace zerohold::kernels
