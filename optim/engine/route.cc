// Records and replays the order of acquires.
#include "optim/engine/route.h"

#include <algorithm>
#include <limits>

namespace zerohold::engine {

void Route::BeginPass() {
  if (recorded_.empty()) return;
  std::swap(expected_, recorded_);
  recorded_.clear();
  position_ = 0;
}

void Route::Acquired(UnitId unit) {
  recorded_.push_back(unit);
  if (position_ < expected_.size() && expected_[position_] == unit) {
    ++position_;
    return;
  }
  if (expected_.empty()) return;
  ++changes_;
  const auto from = expected_.begin() + static_cast<int64_t>(position_);
  const auto found = std::find(from, expected_.end(), unit);
  if (found != expected_.end()) position_ = static_cast<size_t>(found - expected_.begin()) + 1;
}

UnitId Route::Expected(int64_t ahead) const {
  const size_t index = position_ + static_cast<size_t>(ahead);
  return index < expected_.size() ? expected_[index] : -1;
}

int64_t Route::Distance(UnitId unit) const {
  const auto from = expected_.begin() + static_cast<int64_t>(std::min(position_, expected_.size()));
  const auto found = std::find(from, expected_.end(), unit);
  return found == expected_.end() ? std::numeric_limits<int64_t>::max() : found - from;
}

}  // namespace zerohold::engine
