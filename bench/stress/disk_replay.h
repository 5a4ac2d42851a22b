// The bound of a disk: a step's reads and writes (sizes, order, depth), raw, on files of their own
// in the same folders. No update, no checksum, no agreement.
//
// Threads: Run on one; the transfers follow each other on the ring owner's thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "bench/stress/ranks.h"
#include "bench/stress/states.h"
#include "offload/tiers/nvme_tier.h"
#include "src/memory/host_buffer.h"
#include "zerohold/options.h"

namespace zerohold::bench {

class DiskReplay {
 public:
  // Its files are as large as the engine's, up to this; then the same places come again.
  static constexpr int64_t kMostFileBytes = int64_t{8} << 30;

  // Makes and fills the files. Errors: NvmeTier::Create's, and the disk's.
  static StatusOr<std::unique_ptr<DiskReplay>> Create(const HeldStates& held,
                                                      const OffloadOptions& offload,
                                                      memory::Ledger* ledger);
  ~DiskReplay();

  // Brings in the first window, as a step does under the backward pass. Then waits for all ranks
  // and moves everything: the seconds that this took.
  StatusOr<double> Run(const Ranks& ranks);

  io::MoverCounters counters() const { return tier_->counters(); }

 private:
  // What is done with a record, one after the other in its slot: states come, ahead of the step as
  // far as there are slots; gradients come; what an update makes goes.
  enum class Phase : uint8_t { kAhead, kGradients, kStore, kDone };
  struct Slot {
    DiskReplay* replay;
    std::byte* memory;
    int64_t record = 0;
    Phase phase = Phase::kAhead;
    int moving = 0;
  };
  // One section of a record in the files, and in a slot; none for what does not move.
  struct Section {
    int64_t index = -1;
    int64_t slot_offset = 0;
  };
  struct Place {
    Section states, gradients, copies;
  };

  DiskReplay(const HeldStates& held, memory::HostBuffer memory);
  // Gives the sizes of what it places.
  std::vector<int64_t> PlaceSections(const HeldStates& held);
  Status Fill();
  Status Await(int64_t slots, const auto& start);
  void Begin(Slot& slot);
  void Go(Slot& slot);
  void Move(Slot& slot, const Section& section, io::Direction direction);
  static void Moved(void* slot, absl::Status status);
  void Count();

  const int64_t records_;  // of a step
  const bool copy_is_read_;
  std::vector<Place> places_;  // in the files
  const std::shared_ptr<const memory::HostBuffer> memory_;
  std::vector<Slot> slots_;
  std::unique_ptr<tiers::NvmeTier> tier_;

  int64_t next_ = 0;  // record to be begun
  bool ahead_ = false;
  std::atomic<int64_t> left_{0};  // records, or slots ahead, to wait for
  Status failed_;
  std::promise<Status> ended_;
};

}  // namespace zerohold::bench
