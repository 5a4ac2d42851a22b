// The loop over the elements, written once and compiled once for each instruction set: every file
// loop_*.cc includes it, with flags of its own, and exports one function.
//
// Invariant: nothing here leaves a symbol that the linker could merge, or code that runs at
// start-up. All is in an unnamed namespace or always inlined, and the headers are light, so that
// code for a wide instruction set is reached through SelectUpdate alone (a test looks at the
// symbols of the objects).
#pragma once

#include <cstdint>

#include "optim/kernels/cpu/loops.h"

namespace zerohold::kernels {
namespace {

// Any alignment works: 64 bytes is what makes it fast.
template <typename Rule, typename Gradient, typename Form>
void UpdateLoop(const UpdateConstants& constants, const UpdateOperands& operands) {
  static_assert(sizeof(typename Rule::Constants) <= sizeof constants.values);
  typename Rule::Constants c;
  __builtin_memcpy(&c, constants.values, sizeof c);
  // Not overlapping, as UpdateOperands requires: without the word there would be no vector code.
  auto* __restrict master = static_cast<typename Form::Master*>(operands.master);
  auto* __restrict copy = static_cast<typename Form::Copy*>(operands.copy);
  auto* __restrict moment1 = operands.moment1;
  auto* __restrict moment2 = operands.moment2;
  const auto* __restrict gradient =
      static_cast<const typename Gradient::Stored*>(operands.gradient);
  const int64_t elems = operands.elems;
  for (int64_t i = 0; i < elems; ++i) {
    Element e{Form::Get(copy, master, i), 0.0f, 0.0f};
    if constexpr (Rule::kMoment1) e.moment1 = moment1[i];
    if constexpr (Rule::kMoment2) e.moment2 = moment2[i];
    e = Rule::Update(c, e, Gradient::Widen(gradient[i]));
    Form::Set(e.master, copy, master, i);
    if constexpr (Rule::kMoment1) moment1[i] = e.moment1;
    if constexpr (Rule::kMoment2) moment2[i] = e.moment2;
  }
}

template <typename Rule, typename Gradient>
UpdateFunction LoopByForm(FormRow form) {
  switch (form) {
#define ZH_LOOP(value, ...) \
  case FormRow::value:      \
    return &UpdateLoop<Rule, Gradient, __VA_ARGS__>;
    ZH_WEIGHT_FORMS(ZH_LOOP)
#undef ZH_LOOP
  }
  return nullptr;
}

template <typename Rule>
UpdateFunction LoopByGradient(const LoopShape& shape) {
  switch (shape.gradient) {
#define ZH_LOOP(value, Type) \
  case TypeRow::value:       \
    return LoopByForm<Rule, Type>(shape.form);
    ZH_ELEMENT_TYPES(ZH_LOOP)
#undef ZH_LOOP
  }
  return nullptr;
}

ZH_ALWAYS_INLINE UpdateFunction LoopFor(const LoopShape& shape) {
  switch (shape.rule) {
#define ZH_LOOP(value, Rule) \
  case RuleRow::value:       \
    return LoopByGradient<Rule>(shape);
    ZH_UPDATE_RULES(ZH_LOOP)
#undef ZH_LOOP
  }
  return nullptr;
}

}  // namespace
}  // namespace zerohold::kernels
