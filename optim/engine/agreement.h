// The small all-reduces of a step: what each rank brings, and the verdict that all ranks take from
// it. One runs over each communicator but the first, and says which of its flat spaces have a
// gradient; then one over the first, which all ranks share, says the rest.
//
// Everything in it is an integer whose folding is exact and free of order.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/norm_bins.h"
#include "src/comm/communicator.h"
#include "src/layout/layout.h"

namespace zerohold::engine {

class Agreement {
 public:
  explicit Agreement(const layout::Layout& layout);

  // A new step, for which this rank's trainer reported a unit, or none: no space has a gradient.
  void Begin(bool reported);
  void AddPresent(int32_t space);
  // Bins of this rank's shards; also the place where reductions collect them.
  base::NormBins& norm() { return norm_; }

  // One communicator's, the first one's last. `consistency` is a hash of all that must be equal on
  // its ranks, `failed` counts in the first one's. Collective over it, blocking.
  absl::Status Run(comm::Communicator& communicator, int index, bool failed, uint64_t consistency);

  // Of the last Run; the same on all its ranks.
  bool any_failed() const { return maxima_[kFailed] != 0; }
  bool consistent() const { return maxima_[kConsistency] == -maxima_[kConsistencyNegated]; }
  // The verdict, the same on all ranks; valid after the first communicator's.
  bool nonfinite() const { return norm_.nonfinite(); }
  bool any_reported() const { return maxima_[kReported] != 0; }
  double grad_norm() const { return norm_.Norm(); }
  // By space: whether a rank that holds it has a gradient.
  const std::vector<uint8_t>& present() const { return present_; }

 private:
  enum Maximum { kFailed, kConsistency, kConsistencyNegated, kReported, kMaxima };

  bool reported_ = false;
  std::vector<std::vector<int32_t>> spaces_;  // of each communicator
  std::vector<int64_t> bits_;                 // one for each space of the one at hand
  std::array<int64_t, kMaxima> maxima_{};
  std::array<int64_t, base::NormBins::kBins + 1> sums_{};
  base::NormBins norm_;
  std::vector<uint8_t> present_;
};

}  // namespace zerohold::engine
