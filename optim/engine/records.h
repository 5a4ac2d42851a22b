// The optimizer's states, record by record, on the tier where each rests: arrays in host memory,
// updated in place, or a slot of staging for as long as a record from disk is worked on.
//
// Threads: Fetch, Store and Release on the engine thread; Check and Seal on the update stream,
// between the two; Visit when nothing is fetched. Invariants:
//  1. A record from disk is in a slot from its Fetch to its Release, and At tells where.
//  2. Nothing is allocated after Create.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "offload/staging/slot_pool.h"
#include "offload/tiers/nvme_tier.h"
#include "optim/engine/model_memory.h"
#include "src/layout/layout.h"
#include "src/memory/host_buffer.h"
#include "src/memory/ledger.h"
#include "zerohold/options.h"

namespace zerohold::engine {

// Where a record's arrays are now, from its first element.
struct RecordArrays {
  std::byte* master = nullptr;  // fp32, or the low 16 bits; null: the copy is it
  float* moment1 = nullptr;
  float* moment2 = nullptr;
};

class Records {
 public:
  using Done = tiers::NvmeTier::Done;

  // What it is made of; all of it outlives it, but for `before`: it has the records of all
  // generations of units but the last, which are shared; null when there is but one. To move,
  // `before` has all of them, and their values are copied.
  struct Input {
    const layout::Layout& layout;
    const MemoryPlan& plan;
    const OffloadOptions& options;
    std::span<std::byte> staging;  // plan.slots of plan.slot_bytes
    bool pinned;                   // staging; what is not is not registered either
    Records* before;
    bool move;
    MemoryBooks books;
  };
  // Errors: ResourceExhausted with asked and available; those of a folder in nvme_paths;
  // Unavailable for an io_engine that this kernel refuses.
  static absl::StatusOr<std::unique_ptr<Records>> Create(const Input& input);
  ~Records();

  const RecordArrays& At(int64_t record) const { return arrays_[record]; }

  // Brings a record from disk into a slot; takes it back there. `done` is called once, on another
  // thread or at once. Requires: a free slot; Check or Seal as the case may be.
  void Fetch(int64_t record, Done done, void* context);
  void Store(int64_t record, Done done, void* context);
  // Its slot is free again; stored or not. Requires: nothing moves in or out of it.
  void Release(int64_t record);

  // What was fetched is what was stored; what is stored next. For a record in host memory, nothing.
  absl::Status Check(int64_t record) const;
  void Seal(int64_t record);

  // Blocking: lets `visit` read, or write, the arrays of one record where they are.
  absl::Status Visit(int64_t record, bool write,
                     const std::function<void(const RecordArrays&)>& visit);

  // From and to disk since the call before.
  io::MoverCounters TakeMoved();

 private:
  struct ArrayBytes {
    int64_t master = 0;
    int64_t moment1 = 0;
    int64_t moment2 = 0;
    int64_t all() const { return master + moment1 + moment2; }
  };
  // The records of one generation of units.
  struct Part {
    explicit Part(memory::Ledger* counts) : ledger(counts) {}
    ~Part() { Count(-1); }
    void Count(int64_t sign) const;

    memory::Ledger* const ledger;
    std::vector<memory::HostBuffer> buffers;
    std::unique_ptr<tiers::NvmeTier> tier;  // null: none rests on disk
    ArrayBytes on_disk;                     // counted
  };
  struct OnDisk {
    tiers::NvmeTier* tier = nullptr;  // null: in host memory
    int64_t index = 0;                // in it
  };

  explicit Records(const Input& input);
  absl::Status AddPart(const Input& input);
  absl::Status AllocateHost(const Input& input, Part& part);
  absl::Status CreateTier(const Input& input, Part& part);
  absl::Status CopyFrom(Records& before);
  absl::Status Await(int64_t record, bool store);
  static RecordArrays Cut(std::byte* from, const ArrayBytes& bytes);

  std::vector<ArrayBytes> bytes_;  // by record, as all below
  std::vector<RecordArrays> arrays_;
  std::vector<OnDisk> on_disk_;
  std::vector<staging::Lease> leases_;
  std::unique_ptr<staging::SlotPool> pool_;
  std::vector<std::shared_ptr<const Part>> parts_;
  io::MoverCounters taken_;
};

}  // namespace zerohold::engine
