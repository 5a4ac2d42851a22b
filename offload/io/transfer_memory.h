// The memory that transfers read and write, shared by who owns it and by all movers over it. When
// one of them has to give up a transfer that the disk may still carry out, none of that memory may
// be used again, lest the late bytes land under another record; and it stays mapped.
//
// Threads: any.
#pragma once

#include <absl/status/status.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace zerohold::io {

class TransferMemory {
 public:
  TransferMemory() = default;
  explicit TransferMemory(std::shared_ptr<const void> owner) { Keep(std::move(owner)); }

  // Of a mapping that transfers will use, until Drop. It may be kept more than once.
  void Keep(std::shared_ptr<const void> owner) {
    const std::lock_guard lock(mutex_);
    owners_.push_back(std::move(owner));
  }
  // Requires: no transfer is under way that uses it, but those that were given up; then it is not
  // dropped.
  void Drop(const std::shared_ptr<const void>& owner) {
    const std::lock_guard lock(mutex_);
    if (why_.ok()) owners_.erase(std::ranges::find(owners_, owner));
  }

  // For good, with what the transfer is answered; before it is, so that nobody can use its memory
  // and not know.
  void GiveUp(const absl::Status& why) {
    const std::lock_guard lock(mutex_);
    why_.Update(why);
    given_up_ = true;
  }
  bool given_up() const { return given_up_; }
  // What the first of them was answered; OK while there is none.
  absl::Status why() const {
    const std::lock_guard lock(mutex_);
    return why_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const void>> owners_;
  absl::Status why_;
  std::atomic<bool> given_up_{false};  // why_ is not OK
};

}  // namespace zerohold::io
