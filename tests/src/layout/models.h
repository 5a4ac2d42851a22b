// Small models for the tests of the layout.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "src/layout/layout.h"

namespace zerohold::layout {

inline ParameterSpec Parameter(std::string name, std::vector<int64_t> shape,
                               DType dtype = DType::kFloat32) {
  ParameterSpec parameter;
  parameter.name = std::move(name);
  parameter.shape = std::move(shape);
  parameter.dtype = dtype;
  return parameter;
}

// One unit that holds all of them.
inline std::vector<UnitSpec> OneUnit(const std::vector<ParameterSpec>& parameters) {
  std::vector<UnitSpec> units(1);
  units[0].name = "all";
  for (const ParameterSpec& parameter : parameters) units[0].parameters.push_back(parameter.name);
  return units;
}

inline LayoutConfig Sharded(int world, int rank) {
  LayoutConfig config;
  config.communicators = {{world, rank}};
  return config;
}

// Fails the test where the layout is refused.
inline Layout MakeLayout(const LayoutConfig& config, const std::vector<ParameterSpec>& parameters,
                         const std::vector<UnitSpec>& units) {
  absl::StatusOr<Layout> layout = Layout::Create(config, parameters, units);
  if (!layout.ok()) ADD_FAILURE() << layout.status();
  return std::move(layout).value();
}

}  // namespace zerohold::layout
