// The model that is stressed: equal units with seeded first values and seeded gradients.
//
// All values are small whole numbers times 2^-8: exact in every dtype, and so are the sums over
// ranks, in whatever order. So one rank alone can recompute what many have made.
#pragma once

#include <cstdint>
#include <vector>

#include "zerohold/engine.h"

namespace zerohold::bench {

struct StressModel {
  // As near to `params` as equal units come, from above.
  StressModel(int64_t params, DType dtype, int64_t seed);

  int64_t params() const { return units * unit_elems; }
  // One unit alone, by the name and place of the first.
  StressModel OneUnit() const;

  int64_t units;
  int64_t unit_elems;
  DType dtype;
  int64_t seed;
  // One a unit, both with the unit's number as their id.
  std::vector<ParameterSpec> parameter_specs;
  std::vector<UnitSpec> unit_specs;

 private:
  StressModel(int64_t units, int64_t unit_elems, DType dtype, int64_t seed);
};

// The most ranks whose gradients sum exactly.
inline constexpr int kMostRanks = 128;

// Adds the first values of unit `unit`; the gradient that rank `rank` of `world` has at `step`.
void AddFirstValues(const StressModel& model, int64_t unit, const TensorView& parameter);
struct GradientOf {
  int64_t unit;
  int64_t step;
  int rank;
  int world;
};
void AddGradient(const StressModel& model, const GradientOf& what, const TensorView& gradient);

}  // namespace zerohold::bench
