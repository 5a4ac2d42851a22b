// Cuts shards into records, and sends them.
#include "optim/engine/gradient_spill.h"

#include <algorithm>
#include <utility>

#include "src/base/status_macros.h"

namespace zerohold::engine {

absl::StatusOr<std::unique_ptr<GradientSpill>> GradientSpill::Create(const layout::Layout& layout,
                                                                     Records& records,
                                                                     std::span<std::byte> staging,
                                                                     const SlotPlan& slots,
                                                                     memory::Ledger* ledger) {
  std::unique_ptr<GradientSpill> spill(new GradientSpill(layout, records, staging, slots));
  ZH_ASSIGN_OR_RETURN(spill->shard_,
                      memory::HostBuffer::Allocate(layout.MaxShardElems() * SizeOf(DType::kFloat32),
                                                   MemoryKind::kStaging, ledger));
  return spill;
}

GradientSpill::GradientSpill(const layout::Layout& layout, Records& records,
                             std::span<std::byte> staging, const SlotPlan& slots)
    : layout_(layout),
      records_(records),
      first_record_(layout.spaces().size(), -1),
      pool_(staging, slots.slot_bytes),
      slots_(slots.slots) {
  const auto all = layout.records();
  for (size_t i = 0; i < all.size(); ++i) {
    int64_t& first = first_record_[all[i].space];
    if (first < 0) first = static_cast<int64_t>(i);
  }
  for (Slot& slot : slots_) slot.spill = this;
}

GradientSpill::~GradientSpill() { Drain().IgnoreError(); }

void GradientSpill::Land(const layout::Bucket& bucket) {
  const int64_t elem_bytes = SizeOf(layout_.spaces()[bucket.space].dtype);
  const int64_t record_elems = layout_.config().record_elems;
  const int64_t shard_elems = layout_.OwnShardOf(bucket).size();
  for (int64_t done = 0; done < shard_elems;) {
    const int64_t held = layout_.HeldBegin(bucket) + done;
    const int64_t index = first_record_[bucket.space] + held / record_elems;
    const layout::Record& record = layout_.records()[index];
    const int64_t offset = held - record.held_begin;
    const int64_t elems = std::min(record.elems - offset, shard_elems - done);
    if (begun_ == nullptr) begun_ = TakeSlot();
    if (begun_ == nullptr) return;
    std::byte* const slot = begun_->lease.data();
    std::copy_n(shard() + done * elem_bytes, elems * elem_bytes,
                tiers::NvmeTier::Payload(slot) + offset * elem_bytes);
    done += elems;
    if (offset + elems < record.elems) continue;
    Slot* const whole = std::exchange(begun_, nullptr);
    // Behind one that is lost none is stored: a disk that hangs does so but once.
    AnyLost() ? Stored(whole, absl::OkStatus())
              : records_.StoreGradient(index, slot, &Stored, whole);
  }
}

bool GradientSpill::AnyLost() {
  const std::lock_guard lock(mutex_);
  return lost_;
}

// Null when memory was given up: what came back may still be written by the disk.
GradientSpill::Slot* GradientSpill::TakeSlot() {
  std::unique_lock lock(mutex_);
  came_back_.wait(lock, [this] { return pool_.free_slots() > 0; });
  const absl::Status given_up = records_.given_up();
  status_.Update(given_up);
  if (!given_up.ok()) return nullptr;
  Slot* slot = &*std::ranges::find_if(slots_, [](const Slot& one) { return !one.lease; });
  slot->lease = *pool_.TryLease();
  return slot;
}

void GradientSpill::Stored(void* context, absl::Status status) {
  auto& slot = *static_cast<Slot*>(context);
  GradientSpill& spill = *slot.spill;
  const std::lock_guard lock(spill.mutex_);
  slot.lease.Release();
  spill.status_.Update(status);
  spill.lost_ |= !status.ok();
  spill.came_back_.notify_all();
}

absl::Status GradientSpill::Wait() {
  const int kept = begun_ == nullptr ? 0 : 1;
  std::unique_lock lock(mutex_);
  came_back_.wait(lock, [&] { return pool_.free_slots() + kept == pool_.slots(); });
  return std::exchange(status_, absl::OkStatus());
}

absl::Status GradientSpill::Drain() {
  if (begun_ != nullptr) std::exchange(begun_, nullptr)->lease.Release();
  absl::Status status = Wait();
  lost_ = false;
  return status;
}

}  // namespace zerohold::engine
