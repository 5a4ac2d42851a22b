#include "bench/stress/disk_replay.h"

#include <algorithm>
#include <utility>

#include "bench/report.h"
#include "offload/io/backends.h"
#include "src/base/status_macros.h"

namespace zerohold::bench {
namespace {

// As the engine's, without faults.
std::unique_ptr<io::IoBackend> MakeBackend(const OffloadOptions& offload) {
  auto backend = io::CreateBestBackend([](const std::string&) {});
  const io::ThrottleSpec throttle{offload.read_rate, offload.write_rate,
                                  offload.transfer_latency_s};
  if (throttle == io::ThrottleSpec()) return backend;
  return io::CreateThrottledBackend(std::move(backend), throttle);
}

}  // namespace

StatusOr<std::unique_ptr<DiskReplay>> DiskReplay::Create(const HeldStates& held,
                                                         const OffloadOptions& offload,
                                                         memory::Ledger* ledger) {
  const int64_t bytes = held.slots * held.slot_bytes;
  ZH_ASSIGN_OR_RETURN(memory::HostBuffer memory,
                      memory::HostBuffer::Allocate(bytes, MemoryKind::kStaging, ledger));
  std::unique_ptr<DiskReplay> replay(new DiskReplay(held, std::move(memory)));
  tiers::NvmeTier::Settings settings;
  settings.folders = offload.nvme_paths;
  settings.payload_bytes = replay->PlaceSections(held);
  settings.slots = {{replay->slots_[0].memory, static_cast<size_t>(bytes)}};
  settings.memory = std::make_shared<io::TransferMemory>(replay->memory_);
  settings.depth = std::min(255, 3 * held.slots);
  settings.backend = [&offload] { return MakeBackend(offload); };
  settings.notice = [](const std::string&) {};
  ZH_ASSIGN_OR_RETURN(replay->tier_, tiers::NvmeTier::Create(std::move(settings)));
  ZH_RETURN_IF_ERROR(replay->Fill());
  return replay;
}

// What is in the slots is of no use to anybody, but not zeros, which a disk may treat better.
DiskReplay::DiskReplay(const HeldStates& held, memory::HostBuffer memory)
    : records_(std::ssize(held.records)),
      copy_is_read_(held.copy_is_read),
      memory_(std::make_shared<const memory::HostBuffer>(std::move(memory))) {
  for (int i = 0; i < held.slots; ++i) {
    slots_.push_back({this, static_cast<std::byte*>(memory_->data()) + i * held.slot_bytes});
  }
  auto* const words = static_cast<uint64_t*>(memory_->data());
  for (int64_t i = 0; i < held.slots * held.slot_bytes / 8; ++i) {
    words[i] = static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15u;
  }
}

DiskReplay::~DiskReplay() { tier_.reset(); }  // ends what is in flight before its slots go

std::vector<int64_t> DiskReplay::PlaceSections(const HeldStates& held) {
  std::vector<int64_t> payload_bytes;
  int64_t file_bytes = 0;
  for (const RecordBytes& record : held.records) {
    file_bytes += record.states + record.gradients + record.copies;
    if (file_bytes > kMostFileBytes) break;
    int64_t slot_offset = 0;
    const auto place = [&](int64_t bytes) -> Section {
      if (bytes == 0) return {};
      const Section section = {std::ssize(payload_bytes), slot_offset};
      const int64_t its[] = {bytes};
      slot_offset += tiers::NvmeTier::SlotBytes(its);
      payload_bytes.push_back(bytes);
      return section;
    };
    places_.push_back({place(record.states), place(record.gradients), place(record.copies)});
  }
  return payload_bytes;
}

Status DiskReplay::Fill() {
  next_ = records_;
  for (size_t i = 0; i < places_.size(); ++i) {
    Slot& slot = slots_[0];
    slot.record = static_cast<int64_t>(i);
    for (const Section& section : {places_[i].states, places_[i].gradients, places_[i].copies}) {
      if (section.index < 0) continue;
      tier_->Seal(section.index, slot.memory + section.slot_offset);
      slot.phase = Phase::kDone;
      ZH_RETURN_IF_ERROR(Await(1, [&] {
        slot.moving = 1;
        Move(slot, section, io::Direction::kWrite);
      }));
    }
  }
  return absl::OkStatus();
}

StatusOr<double> DiskReplay::Run(const Ranks& ranks) {
  const int64_t first = std::min(records_, std::ssize(slots_));
  next_ = 0;
  ahead_ = true;
  const Status ahead = Await(first, [&] {
    for (int64_t i = 0; i < first; ++i) Begin(slots_[i]);
  });
  ranks.Wait();
  const double begin = NowSeconds();
  ZH_RETURN_IF_ERROR(ahead);
  ahead_ = false;
  ZH_RETURN_IF_ERROR(Await(records_, [&] {
    for (int64_t i = 0; i < first; ++i) Go(slots_[i]);
  }));
  return NowSeconds() - begin;
}

// Until as many slots have come as far as they go, or records, since `start`.
Status DiskReplay::Await(int64_t count, const auto& start) {
  if (count == 0) return absl::OkStatus();  // a rank without records
  failed_ = absl::OkStatus();
  ended_ = {};
  left_ = count;
  start();
  return ended_.get_future().get();
}

void DiskReplay::Begin(Slot& slot) {
  slot.record = next_++;
  slot.phase = Phase::kAhead;
  Go(slot);
}

// The transfers of the slot's phase; of the next one, where it has none.
void DiskReplay::Go(Slot& slot) {
  const Place& place = places_[slot.record % std::ssize(places_)];
  constexpr Section kNone;
  for (;; slot.phase = static_cast<Phase>(static_cast<int>(slot.phase) + 1)) {
    if (ahead_ && slot.phase != Phase::kAhead) return Count();
    if (slot.phase == Phase::kDone) break;
    const bool store = slot.phase == Phase::kStore;
    const bool all = store || copy_is_read_;
    const Section sections[] = {slot.phase == Phase::kGradients ? place.gradients : place.states,
                                slot.phase == Phase::kGradients || !all ? kNone : place.copies};
    slot.moving = 0;
    for (const Section& section : sections) slot.moving += section.index >= 0;
    if (slot.moving == 0) continue;
    for (const Section& section : sections) {
      if (section.index < 0) continue;
      Move(slot, section, store ? io::Direction::kWrite : io::Direction::kRead);
    }
    return;
  }
  if (next_ < records_) Begin(slot);
  Count();
}

void DiskReplay::Move(Slot& slot, const Section& section, io::Direction direction) {
  const auto move =
      direction == io::Direction::kRead ? &tiers::NvmeTier::Fetch : &tiers::NvmeTier::Store;
  (*tier_.*move)(section.index, slot.memory + section.slot_offset, &Moved, &slot);
}

void DiskReplay::Moved(void* context, absl::Status status) {
  Slot& slot = *static_cast<Slot*>(context);
  DiskReplay& replay = *slot.replay;
  replay.failed_.Update(status);
  if (--slot.moving > 0) return;
  if (slot.phase == Phase::kDone) return replay.Count();
  slot.phase = static_cast<Phase>(static_cast<int>(slot.phase) + 1);
  replay.Go(slot);
}

void DiskReplay::Count() {
  if (--left_ == 0) ended_.set_value(failed_);
}

}  // namespace zerohold::bench
