// A queue by which values are handed from any thread to one owner.
//
// A ring that grows only when more values wait than ever waited before, so that a warm queue
// allocates nothing. Unbounded: what limits the number of values in flight is the plan, not the
// queue. Threads: Push from any; TryPop and Pop from one consumer.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace zerohold::base {

template <typename T>
class BlockingQueue {
 public:
  // capacity: how many values may wait before the ring grows for the first time.
  explicit BlockingQueue(size_t capacity = 64) : ring_(capacity > 0 ? capacity : 1) {}
  BlockingQueue(const BlockingQueue&) = delete;
  BlockingQueue& operator=(const BlockingQueue&) = delete;

  void Push(T value) {
    std::lock_guard lock(mutex_);
    if (size_ == ring_.size()) Grow();
    ring_[(head_ + size_) % ring_.size()].emplace(std::move(value));
    ++size_;
    // Under the lock: the consumer may destroy the queue as soon as it has the value.
    pushed_.notify_one();
  }

  // Nothing when the queue is empty.
  std::optional<T> TryPop() {
    std::lock_guard lock(mutex_);
    if (size_ == 0) return std::nullopt;
    return Take();
  }

  // Blocking.
  T Pop() {
    std::unique_lock lock(mutex_);
    pushed_.wait(lock, [this] { return size_ > 0; });
    return Take();
  }

 private:
  // Requires: size_ > 0.
  T Take() {
    T value = *std::move(ring_[head_]);
    ring_[head_].reset();  // what the value owned goes now, not when the ring comes round
    head_ = (head_ + 1) % ring_.size();
    --size_;
    return value;
  }

  void Grow() {
    std::vector<std::optional<T>> larger(2 * ring_.size());
    for (size_t i = 0; i < size_; ++i) larger[i] = std::move(ring_[(head_ + i) % ring_.size()]);
    ring_ = std::move(larger);
    head_ = 0;
  }

  std::mutex mutex_;
  std::condition_variable pushed_;
  std::vector<std::optional<T>> ring_;  // guarded by mutex_, as all below
  size_t head_ = 0;
  size_t size_ = 0;
};

}  // namespace zerohold::base
