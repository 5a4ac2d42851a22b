// What an element header is written with: the arithmetic of one update, for one element, on any
// device.
//
// A rule is a struct of the header with
//   struct Constants            floats alone, at most 12: what an update needs besides its operands
//   static constexpr bool kMoment1, kMoment2   which of the two it keeps
//   static constexpr uint32_t kReads           the Settings it reads, besides the learning rate
//   static Constants MakeConstants(settings)   on the host, in double, rounded to fp32 once
//   static Element Update(constants, element, gradient)   ZH_HOST_DEVICE ZH_ALWAYS_INLINE
// and a row of rule_table.h. In Update: multiply, add, division and sqrt, no fma, no other library
// call; the build keeps the compilers from contracting and reordering, so that every device gives
// the same bits. C++17. Knows no options, arrays or instruction sets.
#pragma once

#include <cstdint>

#include "src/base/host_device.h"

namespace zerohold::kernels {

// The state of one element; a rule leaves alone what it does not keep.
struct Element {
  float master;
  float moment1;
  float moment2;
};

// What the constants of any rule are made from: hyper-parameters, schedule and clipping applied.
struct RuleSettings {
  double learning_rate;
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;
  double momentum;
  bool nesterov;
  double gradient_scale;
  int64_t step;  // of the parameter: 1 for its first update
};

// Bits of kReads: the hyper-parameters that not every rule has.
enum Setting : uint32_t {
  kBeta1 = 1,
  kBeta2 = 2,
  kEpsilon = 4,
  kWeightDecay = 8,
  kMomentum = 16,
  kNesterov = 32,
};

}  // namespace zerohold::kernels
