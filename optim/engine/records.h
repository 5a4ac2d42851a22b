// The optimizer's states, record by record, on the tier where each rests: arrays in host memory,
// updated in place, or a slot of staging for as long as a record from disk is worked on. What of a
// record's reduced gradients and parameters rests on disk lies beside its states, and comes into
// the same slot.
//
// Threads: Fetch, FetchGradient, Store and Release on the engine thread; Check and Seal on the
// update stream, between them; Visit when nothing is fetched; StoreGradient, FetchCopy and
// CheckCopy, into slots of their caller, on any one thread at a time for a record. Invariants:
//  1. A record from disk is in a slot from its Fetch to its Release, and At tells where.
//  2. Nothing is allocated after Create.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
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
  std::byte* gradient = nullptr;  // null: with the space's arrays in memory
  std::byte* copy = nullptr;      // the same
};

// The parts of a record that rest by themselves, each moved by one transfer.
enum class Section : uint8_t { kStates, kGradient, kCopy, kCount };

class Records {
 public:
  using Done = tiers::NvmeTier::Done;
  using MakeBackend = std::function<std::unique_ptr<io::IoBackend>()>;

  // What it is made of; all of it outlives it, but for `before`: it has the records of all
  // generations of units but the last, which are shared; null when there is but one. To move,
  // `before` has all of them, and their values are copied, those of shards in memory too.
  struct Input {
    const layout::Layout& layout;
    const MemoryPlan& plan;
    const ModelMemory& memory;
    const OffloadOptions& options;
    std::span<std::byte> staging;               // all slots of the plan, those of records first
    bool pinned;                                // staging; what is not is not registered either
    std::shared_ptr<const void> staging_owner;  // whose mapping it is
    Records* before;
    const ModelMemory* memory_before;
    bool move;
    double timeout_s;            // of a transfer
    const MakeBackend& backend;  // empty: the options say which
    MemoryBooks books;
  };
  // Errors: ResourceExhausted with asked and available; those of a folder in nvme_paths;
  // Unavailable for an io_engine that this kernel refuses.
  static absl::StatusOr<std::unique_ptr<Records>> Create(const Input& input);
  ~Records();

  const RecordArrays& At(int64_t record) const { return arrays_[record]; }

  // Brings a record from disk into a slot (its gradients by a call of their own, for they come
  // later); takes it back there, but for its gradients. `done` is called once, on another thread or
  // at once. Requires: a free slot; Check or Seal as the case may be.
  void Fetch(int64_t record, Done done, void* context);
  void FetchGradient(int64_t record, Done done, void* context);
  void Store(int64_t record, Done done, void* context);
  // Its slot is free again; stored or not. Requires: nothing moves in or out of it.
  void Release(int64_t record);

  // What was fetched is what was stored; what is stored next. For a record in host memory, nothing.
  absl::Status Check(int64_t record) const;
  void Seal(int64_t record);

  // Of one section, beside the slots above: seals and stores the gradients that lie in the payload
  // of `slot`; brings the copies there, and checks them.
  void StoreGradient(int64_t record, std::byte* slot, Done done, void* context);
  void FetchCopy(int64_t record, std::byte* slot, Done done, void* context);
  absl::Status CheckCopy(int64_t record, const std::byte* slot) const;

  // Blocking: lets `visit` read, or write, a record's states, and its copies where they are on
  // disk; or its gradients alone, through the first slot of those, where a step that has fetched
  // records may be under way, but nothing of gradients.
  using Visitor = std::function<void(const RecordArrays&)>;
  absl::Status Visit(int64_t record, bool write, const Visitor& visit);
  absl::Status VisitGradient(int64_t record, bool write, const Visitor& visit);

  // What a transfer was told that timed out and may still be carried out: the slots may not be
  // written any more, and all transfers are told the same. Any thread.
  absl::Status given_up() const { return transfer_memory_->why(); }

  // From and to disk since the call before.
  io::MoverCounters TakeMoved();

 private:
  static constexpr int kSections = static_cast<int>(Section::kCount);
  using Sections = std::span<const Section>;

  struct ArrayBytes {
    int64_t master = 0;
    int64_t moment1 = 0;
    int64_t moment2 = 0;
    int64_t copy = 0;  // and of the reduced gradients, which have its dtype where they are on disk
    int64_t Of(Section section) const {
      return section == Section::kStates ? master + moment1 + moment2 : copy;
    }
  };
  // The records of one generation of units.
  struct Part {
    explicit Part(memory::Ledger* counts) : ledger(counts) {}
    ~Part() { Count(-1); }
    void Count(int64_t sign) const;

    memory::Ledger* const ledger;
    std::vector<memory::HostBuffer> buffers;
    std::unique_ptr<tiers::NvmeTier> tier;  // null: none rests on disk
    std::vector<std::string> folders;       // its
    ArrayBytes on_disk;                     // counted
    int64_t gradients_on_disk = 0;
  };
  struct Place {
    tiers::NvmeTier* tier = nullptr;  // null: not on disk
    int64_t index = -1;               // in it; -1 without one
    int64_t slot_offset = -1;         // where a slot has it; -1: it is in memory
  };
  struct Places {
    std::array<Place, kSections> sections;
    bool reads_copy = false;  // an update does, before it writes another
    Place& of(Section section) { return sections[static_cast<int>(section)]; }
    const Place& of(Section section) const { return sections[static_cast<int>(section)]; }
  };
  // Transfers of one record that are told of together.
  struct Transfers {
    std::atomic<int> left = 0;
    absl::Status status;  // of those that failed; only the thread of I/O tells of such
    Done done = nullptr;
    void* context = nullptr;
  };

  explicit Records(const Input& input);
  absl::Status AddPart(const Input& input);
  absl::Status AllocateHost(const Input& input, Part& part);
  std::vector<int64_t> PlaceSections(const Input& input, Part& part, size_t first);
  absl::Status CreateTier(const Input& input, Part& part);
  absl::Status CopyFrom(const Input& input);
  absl::Status CopyRecord(const Input& input, int64_t record, std::vector<std::byte>& values);
  std::vector<double> KnownShares(const std::vector<std::string>& folders) const;
  void Lease(int64_t record);
  Sections Read(int64_t record) const;  // those that an update starts from
  void Move(int64_t record, Sections sections, io::Direction direction,
            std::pair<Done, void*> told);
  static void OneMoved(void* transfers, absl::Status status);
  absl::Status CheckSections(int64_t record, Sections sections) const;
  void SealSections(int64_t record, Sections sections);
  RecordArrays ArraysIn(std::byte* slot, int64_t record) const;

  std::vector<ArrayBytes> bytes_;        // by record, as all below
  std::vector<RecordArrays> in_memory_;  // what rests there
  std::vector<RecordArrays> arrays_;     // with what is in a slot
  std::vector<Places> places_;
  std::vector<staging::Lease> leases_;
  std::deque<Transfers> transfers_;
  const std::shared_ptr<const void> staging_owner_;
  std::shared_ptr<io::TransferMemory> transfer_memory_;
  std::unique_ptr<staging::SlotPool> pool_;
  std::byte* gradient_slot_ = nullptr;  // the first of them
  absl::Status visits_hung_;            // of the first; all behind it fail at once
  std::vector<std::shared_ptr<const Part>> parts_;
  io::MoverCounters taken_;
};

}  // namespace zerohold::engine
