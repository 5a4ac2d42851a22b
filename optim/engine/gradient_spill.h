// Takes reduced gradients to disk as they come, bucket by bucket: they are cut into records in
// slots of staging, and each goes when it is whole. Never more of them are in memory than there are
// slots.
//
// Threads: Land, Wait and Drain on the thread of reductions, which may wait; slots come back on the
// thread of I/O. Invariants:
//  1. Buckets of a space land in order, all of them in a step, before another space's: so one
//     record at most is begun and not whole.
//  2. A wait ends, for every slot but that one is on its way to disk.
#pragma once

#include <absl/status/status.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "offload/staging/slot_pool.h"
#include "optim/engine/records.h"
#include "src/layout/layout.h"
#include "src/memory/host_buffer.h"

namespace zerohold::engine {

class GradientSpill {
 public:
  // `staging`: slots.slots of slots.slot_bytes. All outlive it. Errors: ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<GradientSpill>> Create(const layout::Layout& layout,
                                                               Records& records,
                                                               std::span<std::byte> staging,
                                                               const SlotPlan& slots,
                                                               memory::Ledger* ledger);
  // Waits until all slots are back.
  ~GradientSpill();

  // Where this rank's reduced shard of a bucket is put for Land.
  std::byte* shard() const { return static_cast<std::byte*>(shard_.data()); }
  void Land(const layout::Bucket& bucket);
  // Waits until the records that are whole are on disk. The first error since the last time.
  absl::Status Wait();
  // The same; and one that was begun in a step that failed goes no further.
  absl::Status Drain();

 private:
  struct Slot {
    GradientSpill* spill = nullptr;
    staging::Lease lease;
  };

  GradientSpill(const layout::Layout& layout, Records& records, std::span<std::byte> staging,
                const SlotPlan& slots);
  bool AnyLost();
  Slot* TakeSlot();
  static void Stored(void* slot, absl::Status status);

  const layout::Layout& layout_;
  Records& records_;
  std::vector<int64_t> first_record_;  // by space
  memory::HostBuffer shard_;
  Slot* begun_ = nullptr;  // of the thread of reductions

  std::mutex mutex_;
  std::condition_variable came_back_;
  staging::SlotPool pool_;
  std::vector<Slot> slots_;
  absl::Status status_;
  bool lost_ = false;  // some, since the last Drain
};

}  // namespace zerohold::engine
