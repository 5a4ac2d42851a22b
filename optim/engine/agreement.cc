// Packs, runs and reads the agreement.
#include "optim/engine/agreement.h"

#include <algorithm>

#include "src/base/align.h"

namespace zerohold::engine {

Agreement::Agreement(int units) : bits_(base::CeilDiv(units, 64)), present_(units) {}

void Agreement::Begin(bool failed, uint64_t consistency) {
  std::fill(bits_.begin(), bits_.end(), 0);
  maxima_[kFailed] = failed ? 1 : 0;
  // 63 bits, so that the negation exists.
  const auto value = static_cast<int64_t>(consistency >> 1);
  maxima_[kConsistency] = value;
  maxima_[kConsistencyNegated] = -value;
}

void Agreement::AddPresent(UnitId unit) { bits_[unit / 64] |= int64_t{1} << (unit % 64); }

absl::Status Agreement::Run(comm::Communicator& communicator) {
  std::copy(norm_.bins().begin(), norm_.bins().end(), sums_.begin());
  sums_.back() = norm_.nonfinite() ? 1 : 0;
  absl::Status status = communicator.AllReduce({"agreement"}, bits_, maxima_, sums_);
  if (!status.ok()) return status;
  std::copy(sums_.begin(), sums_.end() - 1, norm_.bins().begin());
  norm_.set_nonfinite(sums_.back() != 0);
  for (size_t unit = 0; unit < present_.size(); ++unit) {
    present_[unit] = bits_[unit / 64] >> (unit % 64) & 1;
  }
  return absl::OkStatus();
}

bool Agreement::any_failed() const { return maxima_[kFailed] != 0; }

bool Agreement::consistent() const {
  return maxima_[kConsistency] == -maxima_[kConsistencyNegated];
}

bool Agreement::nonfinite() const { return norm_.nonfinite(); }

bool Agreement::any_present() const {
  return std::any_of(bits_.begin(), bits_.end(), [](int64_t word) { return word != 0; });
}

}  // namespace zerohold::engine
