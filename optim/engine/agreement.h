// The one small all-reduce of a step: what each rank brings, and the verdict that all ranks take
// from it.
//
// Everything in it is an integer whose folding is exact and free of order.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/norm_bins.h"
#include "src/comm/communicator.h"
#include "zerohold/tensor.h"

namespace zerohold::engine {

class Agreement {
 public:
  explicit Agreement(int units);

  // What this rank brings. `consistency` is a hash of all that must be equal on every rank.
  void Begin(bool failed, uint64_t consistency);
  void AddPresent(UnitId unit);
  // Bins of this rank's shards; also the place where reductions collect them.
  base::NormBins& norm() { return norm_; }

  // Collective, blocking.
  absl::Status Run(comm::Communicator& communicator);

  // The verdict, the same on all ranks; valid after Run.
  bool any_failed() const;
  bool consistent() const;
  bool nonfinite() const;
  bool any_present() const;
  double grad_norm() const { return norm_.Norm(); }
  const std::vector<uint8_t>& present() const { return present_; }

 private:
  enum Maximum { kFailed, kConsistency, kConsistencyNegated, kMaxima };

  std::vector<int64_t> bits_;  // one bit per unit
  std::array<int64_t, kMaxima> maxima_{};
  std::array<int64_t, base::NormBins::kBins + 1> sums_{};
  base::NormBins norm_;
  std::vector<uint8_t> present_;
};

}  // namespace zerohold::engine
