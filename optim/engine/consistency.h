// What must be equal on all ranks but comes from each rank's trainer: hyper-parameters, the number
// of micro-batches, values written. A hash of it rides in every agreement; the text tells the
// difference when the hashes differ.
//
// Threads: one owner.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zerohold/options.h"
#include "zerohold/tensor.h"

namespace zerohold::engine {

class Consistency {
 public:
  explicit Consistency(std::span<const UnitSpec> units);

  // The trainer wrote this unit's parameters; `hash` is of all of them.
  void Adopted(UnitId unit, uint64_t hash) { written_[unit] = hash; }
  void SetMicroBatches(int64_t count) { micro_batches_ = count; }

  uint64_t Hash(std::span<const GroupOptions> groups) const;
  // One line per thing, in an order that is the same on all ranks.
  std::string Describe(std::span<const GroupOptions> groups) const;

  // What was written to the units of another one, which come first in this one's list.
  void Inherit(const Consistency& before);

  // Agreed: what was written is forgotten.
  void Clear();

 private:
  std::vector<std::string> names_;
  std::vector<uint64_t> written_;  // by unit; 0 for none
  int64_t micro_batches_ = 0;
};

// All options that must agree over the ranks, one line each.
std::string DescribeOptions(const EngineOptions& options);
std::string DescribeGroup(const GroupOptions& group);

}  // namespace zerohold::engine
