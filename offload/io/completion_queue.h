// Completions that wait for their Reap, and the sleep of a Reap that waits for them.
//
// Threads: Push and Wake from any; Reap from one owner. Nothing is allocated up to `capacity`.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "offload/io/backend.h"

namespace zerohold::io {

// Moves as many of the oldest of `from` as fit to `to`; returns how many.
inline int64_t TakeFront(std::vector<Completion>& from, std::span<Completion> to) {
  const auto count = static_cast<int64_t>(std::min(from.size(), to.size()));
  std::copy_n(from.begin(), count, to.begin());
  from.erase(from.begin(), from.begin() + count);
  return count;
}

class CompletionQueue {
 public:
  void Reserve(int capacity) { completions_.reserve(capacity); }

  void Push(const Completion& completion) {
    std::lock_guard lock(mutex_);
    completions_.push_back(completion);
    changed_.notify_one();
  }

  void Wake() {
    std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_one();
  }

  // As IoBackend::Reap.
  int64_t Reap(std::span<Completion> completions, int64_t timeout_ns) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                      [this] { return woken_ || !completions_.empty(); });
    woken_ = false;
    return TakeFront(completions_, completions);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Completion> completions_;  // guarded by mutex_, as woken_
  bool woken_ = false;
};

}  // namespace zerohold::io
