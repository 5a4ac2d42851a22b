// Slots of one size, cut out of memory that never moves, and the right to hold one. What waits for
// what is told by who asks: a pool is for one kind of holder, and is asked in plan order.
//
// Threads: one owner for the pool and the leases; the bytes are for whoever the holder gives them
// to. Invariants:
//  1. A slot is lent once at a time; a lease outlives every transfer into or out of its slot.
//  2. Nothing is allocated after construction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace zerohold::staging {

class SlotPool;

// Move-only; gives the slot back when it ends.
class Lease {
 public:
  Lease() = default;
  Lease(Lease&& other) noexcept : pool_(std::exchange(other.pool_, nullptr)), slot_(other.slot_) {}
  Lease& operator=(Lease&& other) noexcept;
  ~Lease() { Release(); }

  explicit operator bool() const { return pool_ != nullptr; }
  std::byte* data() const;
  void Release();

 private:
  friend class SlotPool;
  Lease(SlotPool* pool, int slot) : pool_(pool), slot_(slot) {}

  SlotPool* pool_ = nullptr;
  int slot_ = 0;
};

class SlotPool {
 public:
  // `memory` outlives it and begins at a page; as many slots as it holds. Requires: slot_bytes is a
  // positive multiple of 4 KiB.
  SlotPool(std::span<std::byte> memory, int64_t slot_bytes);
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;
  // Requires: all leases are back.
  ~SlotPool();

  // Nothing when all slots are lent.
  std::optional<Lease> TryLease();

  int slots() const { return slots_; }
  int free_slots() const { return static_cast<int>(free_.size()); }

 private:
  friend class Lease;

  const std::span<std::byte> memory_;
  const int64_t slot_bytes_;
  const int slots_;
  std::vector<int> free_;  // the last one is lent next: it is the warmest
};

}  // namespace zerohold::staging
