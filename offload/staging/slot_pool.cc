// Lends and takes back.
#include "offload/staging/slot_pool.h"

#include "src/base/align.h"
#include "src/base/check.h"

namespace zerohold::staging {

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  pool_ = std::exchange(other.pool_, nullptr);
  slot_ = other.slot_;
  return *this;
}

std::byte* Lease::data() const { return pool_->memory_.data() + slot_ * pool_->slot_bytes_; }

void Lease::Release() {
  if (pool_ != nullptr) std::exchange(pool_, nullptr)->free_.push_back(slot_);
}

SlotPool::SlotPool(std::span<std::byte> memory, int64_t slot_bytes)
    : memory_(memory),
      slot_bytes_(slot_bytes),
      slots_(static_cast<int>(static_cast<int64_t>(memory.size()) / slot_bytes)) {
  ZH_CHECK(slot_bytes > 0 && slot_bytes % base::kPageBytes == 0, slot_bytes);
  free_.reserve(slots_);
  for (int slot = slots_ - 1; slot >= 0; --slot) free_.push_back(slot);
}

SlotPool::~SlotPool() { ZH_CHECK(free_slots() == slots_, free_slots(), slots_); }

std::optional<Lease> SlotPool::TryLease() {
  if (free_.empty()) return std::nullopt;
  const int slot = free_.back();
  free_.pop_back();
  return Lease(this, slot);
}

}  // namespace zerohold::staging
