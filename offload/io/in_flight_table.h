// What is known of each transfer in flight, under a number that travels as its tag. Fixed size, no
// allocation.
//
// Threads: one owner.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/check.h"

namespace zerohold::io {

template <typename T>
class InFlightTable {
 public:
  // Forgets what it holds.
  void Reset(int capacity) {
    entries_.assign(capacity, std::nullopt);
    free_.clear();
    free_.reserve(capacity);
    for (int i = capacity; i > 0; --i) free_.push_back(i - 1);
  }

  int capacity() const { return static_cast<int>(entries_.size()); }
  int size() const { return capacity() - static_cast<int>(free_.size()); }
  bool full() const { return free_.empty(); }

  // Requires: !full().
  int Add(T value) {
    ZH_CHECK(!full(), capacity());
    const int number = free_.back();
    free_.pop_back();
    entries_[number] = std::move(value);
    return number;
  }
  // Null when nothing is in flight under this number.
  T* Find(int number) { return entries_[number] ? &*entries_[number] : nullptr; }
  // Requires: something is in flight under this number.
  T Take(uint64_t number) {
    ZH_CHECK(number < entries_.size() && entries_[number], number);
    T value = *std::move(entries_[number]);
    entries_[number].reset();
    free_.push_back(static_cast<int>(number));
    return value;
  }

 private:
  std::vector<std::optional<T>> entries_;
  std::vector<int> free_;
};

}  // namespace zerohold::io
