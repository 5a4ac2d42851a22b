// What is being done to a record when a transfer of it begins, told from the transfer alone and
// from the call that the trainer is in.
//
// Threads: Expect and `doing` belong to the trainer's, the rest to the thread that owns the
// backend.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "offload/io/backends.h"
#include "optim/engine/placement.h"
#include "optim/engine/records.h"
#include "src/layout/layout.h"

namespace zerohold::faults {

// The life of a record on disk: all there is.
enum class Moment : uint8_t {
  kFetchAhead,     // of states, before the agreement
  kFetchBehind,    // of states, when another record has left its slot
  kFetchDropped,   // of states, for an update that a skip takes back
  kFetchUnder,     // of states, where updates go on under the next forward pass
  kFetchCopy,      // of parameters that an update starts from
  kFetchGradient,  // for an update
  kFetchGradientUnder,
  kGather,      // of parameters, for a frame
  kBlame,       // of gradients, to find the first that is not finite
  kReadStates,  // by Read
  kReadCopy,
  kReadGradient,
  kChangeStates,  // before the trainer's values replace some
  kChangeCopy,
  kSpillGradient,  // the first write of this list, under the backward pass
  kStoreStates,    // updated; a fault is told by the agreement that closes the step
  kStoreCopy,
  kStoreStatesUnder,  // a fault is told by the next step's agreement
  kStoreCopyUnder,
  kWriteStates,  // of the trainer's values
  kWriteCopy,
  kOther,  // where two of them cannot be told apart
  kCount
};
constexpr int kMoments = static_cast<int>(Moment::kOther);
const char* NameOf(Moment moment);
constexpr bool Writes(Moment moment) { return moment >= Moment::kSpillGradient; }

// Of a record's first page, before its payload; the rest of it means nothing.
constexpr int64_t kHeaderBytes = 40;

// What a fault is to the one who asked for the transfer.
enum class Harm : uint8_t {
  kShort,
  kAgain,
  kEio,
  kEnospc,
  kFlipHeader,
  kFlipPayload,
  kFlipPadding,
  kStale,
  kLate,
  kLost,
  kCount
};
constexpr int kHarms = static_cast<int>(Harm::kLost);  // that take no time
const char* NameOf(Harm harm);

// What the trainer of a rank is doing.
enum class Doing : uint8_t { kTrain, kSkip, kBlame, kRead, kWrite };

// A section of a record, as the tier numbers them.
struct SectionPlace {
  engine::Section section;
  int file = 0;
  int64_t offset_bytes = 0;
  int64_t payload_bytes = 0;
  int64_t slot_offset = 0;  // in the slot of an update
  int64_t states = -1;      // number of the states of the same record; -1: in memory
  int64_t bytes() const;
};
std::vector<SectionPlace> PlaceSections(const EngineOptions& options, const layout::Layout& layout);

struct Begun {
  Moment moment;
  int64_t number;  // of the section
};
struct Hit {
  Harm harm;
  Moment moment;
  int64_t number;  // of the section
};

// One rank's disk, in memory, and what happens on it.
class Disk {
 public:
  // Of the transfers that `spec` strikes.
  Disk(const EngineOptions& options, const io::FaultSpec& spec);

  // What the engine is given. The disk outlives it.
  std::unique_ptr<io::IoBackend> Backend();
  // Requires: no transfer yet.
  void Expect(const layout::Layout& layout) { places_ = PlaceSections(options_, layout); }
  void Do(Doing doing) { doing_ = doing; }
  void BeginStep() { ++step_; }

  // The engine is gone, or waits for its trainer.
  const std::vector<SectionPlace>& places() const { return places_; }
  const std::vector<Begun>& log() const { return log_; }  // of all transfers
  const std::vector<Hit>& hits() const { return hits_; }
  const std::string& folder(int file) const { return options_.offload.nvme_paths[file]; }

 private:
  class Watched;
  void Watch(const io::Transfer& transfer);
  int64_t NumberAt(const io::Transfer& transfer) const;
  Moment MomentOf(const io::Transfer& transfer, int64_t number);
  Moment MomentOfRead(engine::Section section, bool in_slot, int64_t turn) const;
  Moment MomentOfWrite(engine::Section section) const;
  void Hear(io::Fault fault, const io::Transfer& transfer, int64_t byte);

  const EngineOptions options_;
  const io::FaultSpec spec_;
  std::vector<SectionPlace> places_;
  std::atomic<Doing> doing_ = Doing::kTrain;
  std::atomic<int> step_ = 0;

  std::vector<Begun> log_;
  int turns_of_step_ = -1;
  std::vector<int64_t> turns_;           // states in the order in which this step fetched them
  std::vector<const std::byte*> slots_;  // where an update has, or had, the record; by number
  std::array<Moment, 256> moments_{};    // of what is in flight, by tag
  std::vector<Hit> hits_;
};

}  // namespace zerohold::faults
