// Packs, runs and reads the agreement.
#include "optim/engine/agreement.h"

#include <algorithm>

#include "src/base/align.h"

namespace zerohold::engine {

Agreement::Agreement(const layout::Layout& layout)
    : spaces_(layout.config().communicators.size()), present_(layout.spaces().size()) {
  for (size_t space = 0; space < layout.spaces().size(); ++space) {
    spaces_[layout.spaces()[space].communicator].push_back(static_cast<int32_t>(space));
  }
  bits_.reserve(base::CeilDiv(static_cast<int64_t>(present_.size()), 64));
}

void Agreement::Begin(bool reported) {
  reported_ = reported;
  std::fill(present_.begin(), present_.end(), 0);
}

void Agreement::AddPresent(int32_t space) { present_[space] = 1; }

absl::Status Agreement::Run(comm::Communicator& communicator, int index, bool failed,
                            uint64_t consistency) {
  const std::vector<int32_t>& spaces = spaces_[index];
  bits_.assign(base::CeilDiv(static_cast<int64_t>(spaces.size()), 64), 0);
  for (size_t i = 0; i < spaces.size(); ++i) {
    if (present_[spaces[i]]) bits_[i / 64] |= int64_t{1} << (i % 64);
  }
  maxima_[kFailed] = failed ? 1 : 0;
  // 63 bits, so that the negation exists.
  const auto value = static_cast<int64_t>(consistency >> 1);
  maxima_[kConsistency] = value;
  maxima_[kConsistencyNegated] = -value;
  maxima_[kReported] = reported_ ? 1 : 0;
  const bool all_ranks = index == 0;
  std::copy(norm_.bins().begin(), norm_.bins().end(), sums_.begin());
  sums_.back() = norm_.nonfinite() ? 1 : 0;
  const std::span<int64_t> sums = all_ranks ? std::span<int64_t>(sums_) : std::span<int64_t>();
  absl::Status status = communicator.AllReduce({"agreement"}, bits_, maxima_, sums);
  if (!status.ok()) return status;
  for (size_t i = 0; i < spaces.size(); ++i) {
    present_[spaces[i]] = bits_[i / 64] >> (i % 64) & 1;
  }
  if (!all_ranks) return status;
  std::copy(sums_.begin(), sums_.end() - 1, norm_.bins().begin());
  norm_.set_nonfinite(sums_.back() != 0);
  return status;
}

}  // namespace zerohold::engine
