// The loop over the elements, written once and compiled once for each instruction set: every file
// loop_*.cc includes it, with flags of its own, and exports one function.
//
// Invariant: nothing here leaves a symbol that the linker could merge, or code that runs at
// start-up. All is in an unnamed namespace or always inlined, and the headers are light, so that
// code for a wide instruction set is reached through SelectUpdate alone (a test looks at the
// symbols of the objects).
#pragma once

#include <cstdint>

#include "optim/kernels/operands.h"
#include "optim/kernels/rule_table.h"

namespace zerohold::kernels {
namespace {

// Any alignment works: 64 bytes is what makes it fast.
template <typename Rule>
void UpdateLoop(const UpdateConstants& constants, const UpdateOperands& operands) {
  static_assert(sizeof(typename Rule::Constants) <= sizeof constants.values);
  typename Rule::Constants c;
  __builtin_memcpy(&c, constants.values, sizeof c);
  // Not overlapping, as UpdateOperands requires: without the word there would be no vector code.
  float* __restrict master = operands.master;
  float* __restrict moment1 = operands.moment1;
  float* __restrict moment2 = operands.moment2;
  const float* __restrict gradient = operands.gradient;
  const int64_t elems = operands.elems;
  for (int64_t i = 0; i < elems; ++i) {
    Element e{master[i], 0.0f, 0.0f};
    if constexpr (Rule::kMoments > 0) e.moment1 = moment1[i];
    if constexpr (Rule::kMoments > 1) e.moment2 = moment2[i];
    e = Rule::Update(c, e, gradient[i]);
    master[i] = e.master;
    if constexpr (Rule::kMoments > 0) moment1[i] = e.moment1;
    if constexpr (Rule::kMoments > 1) moment2[i] = e.moment2;
  }
}

ZH_ALWAYS_INLINE UpdateFunction LoopFor(RuleRow row) {
  switch (row) {
#define ZH_LOOP(value, Rule) \
  case RuleRow::value:       \
    return &UpdateLoop<Rule>;
    ZH_UPDATE_RULES(ZH_LOOP)
#undef ZH_LOOP
  }
  return nullptr;
}

}  // namespace
}  // namespace zerohold::kernels
