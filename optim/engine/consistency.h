// What must be equal on all ranks but comes from each rank's trainer: hyper-parameters, the number
// of micro-batches, values written. A hash of it rides in every agreement; the text tells the
// difference when the hashes differ.
//
// Threads: one owner.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/comm/communicator.h"
#include "src/layout/layout.h"
#include "zerohold/options.h"
#include "zerohold/tensor.h"

namespace zerohold::engine {

class Consistency {
 public:
  // Both outlive it.
  Consistency(const layout::Layout& layout, std::span<const UnitSpec> units);

  // The trainer wrote this flat space's parameters; `hash` is of all of them.
  void Adopted(int32_t space, uint64_t hash) { written_[space] = hash; }
  void SetMicroBatches(int64_t count) { micro_batches_ = count; }

  // Of what the ranks of a communicator must have in common.
  uint64_t Hash(std::span<const GroupOptions> groups, int communicator) const;
  // One line per thing, in an order that is the same on all of them.
  std::string Describe(std::span<const GroupOptions> groups, int communicator) const;

  // What was written to the units of another one, which come first in this one's list.
  void Inherit(const Consistency& before);

  // Agreed: what was written is forgotten.
  void Clear();

 private:
  const layout::Layout& layout_;
  const std::span<const UnitSpec> units_;
  std::vector<uint64_t> written_;  // by space; 0 for none
  int64_t micro_batches_ = 0;
};

// All options that must agree over the ranks, one line each.
std::string DescribeOptions(const EngineOptions& options);
std::string DescribeGroup(size_t index, const GroupOptions& group);
std::string DescribeOffload(const OffloadOptions& offload);

// OK when the ranks of each communicator have the same text for it; else FailedPrecondition, on all
// ranks of the first one. Collective.
absl::Status AgreeOnTexts(std::span<const std::shared_ptr<comm::Communicator>> communicators,
                          std::string_view what, const std::function<std::string(int)>& text_of);

}  // namespace zerohold::engine
