// The rules: one row each, its value of UpdateRule (in that enum's order) and its struct.
// Everything that chooses by rule reads this table. C++17, and as light as operands.h.
#pragma once

#include "optim/kernels/element/adagrad.h"
#include "optim/kernels/element/adam.h"
#include "optim/kernels/element/adamw.h"
#include "optim/kernels/element/lion.h"
#include "optim/kernels/element/sgd.h"

#define ZH_UPDATE_RULES(ROW) \
  ROW(kAdamW, AdamW)         \
  ROW(kAdam, Adam)           \
  ROW(kSgd, Sgd)             \
  ROW(kLion, Lion)           \
  ROW(kAdagrad, Adagrad)

namespace zerohold::kernels {

// UpdateRule for those who must not include the front door; update.cc checks that the two agree.
enum class RuleRow {
#define ZH_VALUE(value, Rule) value,
  ZH_UPDATE_RULES(ZH_VALUE)
#undef ZH_VALUE
};

}  // namespace zerohold::kernels
