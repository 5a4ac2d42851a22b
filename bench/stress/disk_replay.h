// The bound of a disk: the step's reads and writes (sizes, order, depth), raw, on files of their
// own in the same folders. No update, no checksum, no agreement.
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
  // One record after the other is read into it and written back.
  struct Slot {
    DiskReplay* replay;
    std::byte* memory;
    int64_t record;
  };

  DiskReplay(const HeldStates& held, memory::HostBuffer memory);
  Status Fill();
  void Fetch(Slot& slot, tiers::NvmeTier::Done done);
  void Store(Slot& slot);
  Status Await(int64_t transfers, const auto& start);
  static void Ahead(void* slot, absl::Status status);
  static void Fetched(void* slot, absl::Status status);
  static void Stored(void* slot, absl::Status status);
  // One transfer less to wait for.
  void Count(const Status& status);

  const int64_t records_;  // of a step
  int64_t places_ = 0;     // in the files
  const memory::HostBuffer memory_;
  std::vector<Slot> slots_;
  std::unique_ptr<tiers::NvmeTier> tier_;

  int64_t next_ = 0;  // record to be fetched
  std::atomic<int64_t> left_{0};
  Status failed_;
  std::promise<Status> ended_;
};

}  // namespace zerohold::bench
