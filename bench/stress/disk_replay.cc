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
  if (offload.read_rate <= 0 && offload.write_rate <= 0) return backend;
  return io::CreateThrottledBackend(
      std::move(backend), {.read_rate = offload.read_rate, .write_rate = offload.write_rate});
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
  int64_t file_bytes = 0;
  for (const int64_t record_bytes : held.record_bytes) {
    file_bytes += record_bytes;
    if (file_bytes > kMostFileBytes) break;
    settings.payload_bytes.push_back(record_bytes);
  }
  replay->places_ = std::ssize(settings.payload_bytes);
  settings.slots = {{replay->slots_[0].memory, static_cast<size_t>(bytes)}};
  settings.backend = [&offload] { return MakeBackend(offload); };
  settings.notice = [](const std::string&) {};
  ZH_ASSIGN_OR_RETURN(replay->tier_, tiers::NvmeTier::Create(std::move(settings)));
  ZH_RETURN_IF_ERROR(replay->Fill());
  return replay;
}

// What is in the slots is of no use to anybody, but not zeros, which a disk may treat better.
DiskReplay::DiskReplay(const HeldStates& held, memory::HostBuffer memory)
    : records_(std::ssize(held.record_bytes)), memory_(std::move(memory)) {
  for (int i = 0; i < held.slots; ++i) {
    slots_.push_back({this, static_cast<std::byte*>(memory_.data()) + i * held.slot_bytes, 0});
  }
  auto* const words = static_cast<uint64_t*>(memory_.data());
  for (int64_t i = 0; i < held.slots * held.slot_bytes / 8; ++i) {
    words[i] = static_cast<uint64_t>(i + 1) * 0x9e3779b97f4a7c15u;
  }
}

DiskReplay::~DiskReplay() { tier_.reset(); }  // ends what is in flight before its slots go

Status DiskReplay::Fill() {
  for (int64_t record = 0; record < places_; ++record) {
    Slot& slot = slots_[record % slots_.size()];
    slot.record = record;
    next_ = records_;
    tier_->Seal(record, slot.memory);
    ZH_RETURN_IF_ERROR(Await(1, [&] { Store(slot); }));
  }
  return absl::OkStatus();
}

StatusOr<double> DiskReplay::Run(const Ranks& ranks) {
  const int64_t first = std::min(records_, std::ssize(slots_));
  next_ = 0;
  const Status ahead = Await(first, [&] {
    for (int64_t i = 0; i < first; ++i) Fetch(slots_[i], &Ahead);
  });
  ranks.Wait();
  const double begin = NowSeconds();
  ZH_RETURN_IF_ERROR(ahead);
  ZH_RETURN_IF_ERROR(Await(records_, [&] {
    for (int64_t i = 0; i < first; ++i) Store(slots_[i]);
  }));
  return NowSeconds() - begin;
}

// Until as many transfers have been counted since `start`.
Status DiskReplay::Await(int64_t transfers, const auto& start) {
  if (transfers == 0) return absl::OkStatus();  // a rank without records
  failed_ = absl::OkStatus();
  ended_ = {};
  left_ = transfers;
  start();
  return ended_.get_future().get();
}

void DiskReplay::Fetch(Slot& slot, tiers::NvmeTier::Done done) {
  slot.record = next_++;
  tier_->Fetch(slot.record % places_, slot.memory, done, &slot);
}

void DiskReplay::Store(Slot& slot) {
  tier_->Store(slot.record % places_, slot.memory, &Stored, &slot);
}

void DiskReplay::Ahead(void* context, absl::Status status) {
  static_cast<Slot*>(context)->replay->Count(status);
}

void DiskReplay::Fetched(void* context, absl::Status status) {
  Slot& slot = *static_cast<Slot*>(context);
  slot.replay->failed_.Update(status);
  slot.replay->Store(slot);
}

void DiskReplay::Stored(void* context, absl::Status status) {
  Slot& slot = *static_cast<Slot*>(context);
  DiskReplay& replay = *slot.replay;
  if (replay.next_ < replay.records_) replay.Fetch(slot, &Fetched);
  replay.Count(status);
}

void DiskReplay::Count(const Status& status) {
  failed_.Update(status);
  if (--left_ == 0) ended_.set_value(failed_);
}

}  // namespace zerohold::bench
