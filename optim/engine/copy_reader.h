// Brings this rank's shards of parameters from disk into units' frames, ahead of the gathers that
// send them to the others: units in the order in which they were asked for, each record through a
// slot of staging.
//
// Threads: Enqueue on the engine thread, Wait on that of gathers; transfers end on the thread of
// I/O, and a stream of its own checks and copies what came. Invariants:
//  1. Records are read in the order of Enqueue, as many at a time as there are slots. A unit that
//     gets the frame of one which is still being gathered waits for that.
//  2. Nothing is allocated after construction.
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
#include "src/device/device.h"
#include "src/layout/layout.h"

namespace zerohold::engine {

class CopyReader {
 public:
  struct Input {
    const layout::Layout& layout;
    const Placement& placement;
    Records& records;
    std::span<std::byte> staging;  // placement.copy_slots
    device::Device& device;
  };
  // All of it outlives the reader.
  explicit CopyReader(const Input& input);
  // Waits for what is under way.
  ~CopyReader();

  // A unit on its way, from Enqueue to Finish.
  struct Reading {
    std::byte* frame = nullptr;
    int64_t frame_bytes = 0;
    UnitId unit = -1;
    layout::Range records;  // not begun
    int64_t left = 0;       // not there yet
    absl::Status status;
    Reading* behind = nullptr;
  };
  // The unit's shards go to `frame`, its home. `reading` outlives the reader, or lasts until
  // Finish.
  void Enqueue(UnitId unit, std::byte* frame, Reading* reading);
  // Blocks until they are all there. The first error. The frame is this unit's until Finish.
  absl::Status Wait(Reading* reading);
  void Finish(Reading* reading);
  // A record is lost: nothing more is read, and what was not begun ends with `why`. Any thread.
  void GiveUp(const absl::Status& why);

 private:
  struct Slot {
    CopyReader* reader = nullptr;
    staging::Lease lease;
    int64_t record = 0;
    Reading* of = nullptr;
    absl::Status status;
  };

  void ReadOn(std::unique_lock<std::mutex>& lock);
  void GiveUpLocked(const absl::Status& why);
  Reading* Next() const;
  static void Came(void* slot, absl::Status status);
  static void Land(void* slot);
  void CopyPieces(const Slot& slot) const;

  const layout::Layout& layout_;
  Records& records_;
  std::vector<layout::Range> records_of_unit_;  // on disk; consecutive
  std::unique_ptr<device::Stream> stream_;

  std::mutex mutex_;
  std::condition_variable landed_;
  staging::SlotPool pool_;
  std::vector<Slot> slots_;
  Reading* first_ = nullptr;  // of those that are not finished, in the order of Enqueue
  absl::Status lost_;         // see GiveUp
  bool ending_ = false;
};

}  // namespace zerohold::engine
