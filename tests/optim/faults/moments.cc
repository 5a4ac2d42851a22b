// Places sections as the engine does, and puts a watch between the mover and the faults.
#include "tests/optim/faults/moments.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "offload/tiers/nvme_tier.h"
#include "src/base/align.h"
#include "src/base/check.h"

namespace zerohold::faults {
namespace {

using engine::Section;

int64_t SectionBytes(int64_t payload_bytes) {
  const int64_t payloads[] = {payload_bytes};
  return tiers::NvmeTier::SlotBytes(payloads);
}

Harm HarmOf(io::Fault fault, const SectionPlace& place, int64_t byte) {
  switch (fault) {
    case io::Fault::kShortTransfer:
      return Harm::kShort;
    case io::Fault::kAgain:
      return Harm::kAgain;
    case io::Fault::kEio:
      return Harm::kEio;
    case io::Fault::kEnospc:
      return Harm::kEnospc;
    case io::Fault::kStale:
      return Harm::kStale;
    case io::Fault::kLate:
      return Harm::kLate;
    case io::Fault::kLost:
      return Harm::kLost;
    default:
      break;
  }
  const int64_t payload = byte - base::kPageBytes;
  if (byte < kHeaderBytes) return Harm::kFlipHeader;
  return payload >= 0 && payload < place.payload_bytes ? Harm::kFlipPayload : Harm::kFlipPadding;
}

}  // namespace

const char* NameOf(Moment moment) {
  constexpr const char* kNames[] = {"fetch ahead",
                                    "fetch behind",
                                    "fetch dropped",
                                    "fetch under forward",
                                    "fetch of a copy",
                                    "fetch of a gradient",
                                    "fetch of a gradient under forward",
                                    "gather",
                                    "blame",
                                    "read of states",
                                    "read of a copy",
                                    "read of a gradient",
                                    "change of states",
                                    "change of a copy",
                                    "spill of a gradient",
                                    "store of states",
                                    "store of a copy",
                                    "store of states under forward",
                                    "store of a copy under forward",
                                    "write of states",
                                    "write of a copy",
                                    "other"};
  static_assert(std::size(kNames) == static_cast<size_t>(Moment::kCount));
  return kNames[static_cast<int>(moment)];
}

const char* NameOf(Harm harm) {
  constexpr const char* kNames[] = {"short transfer",  "EAGAIN or EINTR",    "EIO",
                                    "ENOSPC",          "flip in the header", "flip in the payload",
                                    "flip in padding", "stale write",        "late completion",
                                    "no completion"};
  static_assert(std::size(kNames) == static_cast<size_t>(Harm::kCount));
  return kNames[static_cast<int>(harm)];
}

int64_t SectionPlace::bytes() const { return SectionBytes(payload_bytes); }

// As Records and NvmeTier do; a difference is found by the first transfer that lies elsewhere.
std::vector<SectionPlace> PlaceSections(const EngineOptions& options,
                                        const layout::Layout& layout) {
  const engine::Placement placement = engine::Place(options, layout, true);
  std::vector<SectionPlace> places;
  std::vector<int64_t> filled(options.offload.nvme_paths.size());
  const auto records = layout.records();
  for (size_t i = 0; i < records.size(); ++i) {
    const layout::FlatSpace& space = layout.spaces()[records[i].space];
    const int64_t copy_bytes = records[i].elems * SizeOf(space.dtype);
    int64_t slot_offset = 0;
    int64_t states = -1;
    const auto place = [&](Section section, int64_t payload_bytes) {
      const auto file = std::ranges::min_element(filled) - filled.begin();
      if (section == Section::kStates) states = std::ssize(places);
      places.push_back(
          {section, static_cast<int>(file), filled[file], payload_bytes, slot_offset, states});
      filled[file] += places.back().bytes();
      slot_offset += places.back().bytes();
    };
    if (placement.states[i]) {
      place(Section::kStates, records[i].elems * engine::StateBytes(options, space.dtype));
    }
    if (placement.gradients[records[i].space]) place(Section::kGradient, copy_bytes);
    if (placement.copies[records[i].space]) place(Section::kCopy, copy_bytes);
  }
  return places;
}

// Sees every transfer before the faults do.
class Disk::Watched final : public io::IoBackend {
 public:
  Watched(Disk& disk, std::unique_ptr<io::IoBackend> under)
      : disk_(disk), under_(std::move(under)) {}
  const char* name() const override { return under_->name(); }
  absl::Status Open(std::span<const int> descriptors, std::span<const std::span<std::byte>> memory,
                    int depth) override {
    return under_->Open(descriptors, memory, depth);
  }
  void Submit(std::span<const io::Transfer> transfers) override {
    for (const io::Transfer& transfer : transfers) disk_.Watch(transfer);
    under_->Submit(transfers);
  }
  int64_t Reap(std::span<io::Completion> completions, int64_t timeout_ns) override {
    return under_->Reap(completions, timeout_ns);
  }
  void Wake() override { under_->Wake(); }

 private:
  Disk& disk_;
  const std::unique_ptr<io::IoBackend> under_;
};

Disk::Disk(const EngineOptions& options, const io::FaultSpec& spec)
    : options_(options), spec_(spec) {}

std::unique_ptr<io::IoBackend> Disk::Backend() {
  const auto hear = [this](io::Fault fault, const io::Transfer& transfer, int64_t byte) {
    Hear(fault, transfer, byte);
  };
  return std::make_unique<Watched>(*this,
                                   io::CreateFaultyBackend(io::CreateMemoryBackend(), spec_, hear));
}

// A transfer that goes on where another ended begins inside its section.
int64_t Disk::NumberAt(const io::Transfer& transfer) const {
  for (size_t i = 0; i < places_.size(); ++i) {
    const SectionPlace& place = places_[i];
    const int64_t begin = transfer.offset_bytes - place.offset_bytes;
    if (place.file != transfer.file || begin < 0 || begin >= place.bytes()) continue;
    ZH_CHECK(begin + transfer.bytes == place.bytes(), begin, transfer.bytes, place.bytes());
    return static_cast<int64_t>(i);
  }
  ZH_CHECK(false, transfer.file, transfer.offset_bytes);
  return -1;
}

void Disk::Watch(const io::Transfer& transfer) {
  const int64_t number = NumberAt(transfer);
  log_.push_back({MomentOf(transfer, number), number});
  moments_[transfer.tag] = log_.back().moment;
}

Moment Disk::MomentOf(const io::Transfer& transfer, int64_t number) {
  const SectionPlace& place = places_[number];
  if (transfer.direction == io::Direction::kWrite) return MomentOfWrite(place.section);
  if (const int step = step_; step != turns_of_step_) {
    turns_of_step_ = step;
    turns_.clear();
    slots_.resize(places_.size());
  }
  const std::byte* const slot =
      transfer.memory - (transfer.offset_bytes - place.offset_bytes) - place.slot_offset;
  int64_t turn = 0;
  if (place.section == Section::kStates) {
    slots_[number] = slot;
    turn = std::ranges::find(turns_, number) - turns_.begin();
    if (turn == std::ssize(turns_)) turns_.push_back(number);
  }
  // Without states on disk nothing tells a visit from a gather.
  if (place.states < 0 && doing_ != Doing::kTrain) return Moment::kOther;
  return MomentOfRead(place.section, place.states >= 0 && slots_[place.states] == slot, turn);
}

// `in_slot`: where an update, or a visit, has the record's states. `turn`: how many states were
// fetched in this step before.
Moment Disk::MomentOfRead(Section section, bool in_slot, int64_t turn) const {
  const bool overlaps = options_.overlap_next_forward;
  const Doing doing = doing_;
  // A call may begin while what it waits for still goes on.
  if (section == Section::kCopy && !in_slot) return Moment::kGather;
  if (overlaps && doing != Doing::kTrain) return Moment::kOther;
  if (section == Section::kCopy) {
    if (doing == Doing::kRead) return Moment::kReadCopy;
    if (doing == Doing::kWrite) return Moment::kChangeCopy;
    return doing == Doing::kTrain ? Moment::kFetchCopy : Moment::kFetchDropped;
  }
  if (section == Section::kGradient) {
    if (doing == Doing::kRead) return Moment::kReadGradient;
    if (doing == Doing::kBlame) return Moment::kBlame;
    return overlaps ? Moment::kFetchGradientUnder : Moment::kFetchGradient;
  }
  if (doing == Doing::kRead) return Moment::kReadStates;
  if (doing == Doing::kWrite) return Moment::kChangeStates;
  if (doing != Doing::kTrain) return Moment::kFetchDropped;
  if (overlaps) return Moment::kFetchUnder;
  return turn < options_.offload.window ? Moment::kFetchAhead : Moment::kFetchBehind;
}

Moment Disk::MomentOfWrite(Section section) const {
  if (section == Section::kGradient) return Moment::kSpillGradient;
  const bool states = section == Section::kStates;
  const Doing doing = doing_;
  if (options_.overlap_next_forward) {
    if (doing != Doing::kTrain) return Moment::kOther;
    return states ? Moment::kStoreStatesUnder : Moment::kStoreCopyUnder;
  }
  if (doing == Doing::kWrite) return states ? Moment::kWriteStates : Moment::kWriteCopy;
  return states ? Moment::kStoreStates : Moment::kStoreCopy;
}

void Disk::Hear(io::Fault fault, const io::Transfer& transfer, int64_t byte) {
  const int64_t number = NumberAt(transfer);
  const SectionPlace& place = places_[number];
  const int64_t in_section = transfer.offset_bytes - place.offset_bytes + byte;
  hits_.push_back({HarmOf(fault, place, in_section), moments_[transfer.tag], number});
}

}  // namespace zerohold::faults
