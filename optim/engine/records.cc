// Allocates what rests in host memory, makes files for the rest, and moves records between.
#include "optim/engine/records.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <future>
#include <tuple>
#include <utility>

#include "offload/io/backends.h"
#include "offload/staging/pin.h"
#include "optim/kernels/masters.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace zerohold::engine {
namespace {

absl::StatusOr<std::unique_ptr<io::IoBackend>> ChosenBackend(IoEngine engine,
                                                             const base::NoticeSink& notice) {
  constexpr int kThreads = 8;
  if (engine == IoEngine::kBest) return io::CreateBestBackend(notice);
  if (engine == IoEngine::kThreads) return io::CreateThreadBackend(kThreads);
  auto ring = io::CreateUringBackend(notice);
  if (ring.ok()) return ring;
  return absl::UnavailableError(absl::StrCat("offload.io_engine: ", ring.status().message(),
                                             "; allow it, or give kBest or kThreads"));
}

// Files of the folder's disk, or what tests and benches put in its place.
absl::StatusOr<std::unique_ptr<io::IoBackend>> CreateBackend(const Records::Input& input) {
  if (input.backend) return input.backend();
  const OffloadOptions& options = input.options;
  ZH_ASSIGN_OR_RETURN(std::unique_ptr<io::IoBackend> backend,
                      ChosenBackend(options.io_engine, input.books.notice));
  const io::ThrottleSpec throttle{options.read_rate, options.write_rate,
                                  options.transfer_latency_s};
  if (throttle != io::ThrottleSpec()) {
    backend = io::CreateThrottledBackend(std::move(backend), throttle);
  }
  if (options.faults.empty()) return backend;
  return io::CreateFaultyBackend(std::move(backend), io::ParseFaultSpec(options.faults).value());
}

// What an update makes anew, and what it is given.
constexpr Section kWritten[] = {Section::kStates, Section::kCopy};
constexpr Section kReduced[] = {Section::kGradient};

// One of a record's arrays, to be copied.
struct Piece {
  int64_t bytes;
  std::byte* (*of)(const RecordArrays&);
};

// Waits for a transfer, or for several that are told of together.
template <typename Start>
absl::Status Await(Start start) {
  std::promise<absl::Status> moved;
  start(
      [](void* context, absl::Status status) {
        static_cast<std::promise<absl::Status>*>(context)->set_value(std::move(status));
      },
      &moved);
  return moved.get_future().get();
}

std::byte* MasterOf(const RecordArrays& arrays) { return arrays.master; }
std::byte* Moment1Of(const RecordArrays& arrays) {
  return reinterpret_cast<std::byte*>(arrays.moment1);
}
std::byte* Moment2Of(const RecordArrays& arrays) {
  return reinterpret_cast<std::byte*>(arrays.moment2);
}
std::byte* CopyOf(const RecordArrays& arrays) { return arrays.copy; }
std::byte* GradientOf(const RecordArrays& arrays) { return arrays.gradient; }

}  // namespace

void Records::Part::Count(int64_t sign) const {
  ledger->Add(Tier::kNvme, MemoryKind::kMaster, sign * on_disk.master);
  ledger->Add(Tier::kNvme, MemoryKind::kMoment1, sign * on_disk.moment1);
  ledger->Add(Tier::kNvme, MemoryKind::kMoment2, sign * on_disk.moment2);
  ledger->Add(Tier::kNvme, MemoryKind::kParameters, sign * on_disk.copy);
  ledger->Add(Tier::kNvme, MemoryKind::kGradients, sign * gradients_on_disk);
}

absl::StatusOr<std::unique_ptr<Records>> Records::Create(const Input& input) {
  std::unique_ptr<Records> records(new Records(input));
  ZH_RETURN_IF_ERROR(records->AddPart(input));
  if (input.move) ZH_RETURN_IF_ERROR(records->CopyFrom(input));
  return records;
}

Records::Records(const Input& input) : staging_owner_(input.staging_owner) {
  for (const layout::Record& record : input.layout.records()) {
    const DType dtype = input.layout.spaces()[record.space].dtype;
    const int64_t fp32_bytes = record.elems * SizeOf(DType::kFloat32);
    bytes_.push_back({.master = record.elems *
                                kernels::MasterBytes({.copy = dtype, .master = input.plan.master}),
                      .moment1 = input.plan.moment1 ? fp32_bytes : 0,
                      .moment2 = input.plan.moment2 ? fp32_bytes : 0,
                      .copy = record.elems * SizeOf(dtype)});
  }
  if (input.before != nullptr && !input.move) {
    in_memory_ = input.before->in_memory_;
    places_ = input.before->places_;
    parts_ = input.before->parts_;
    taken_ = input.before->taken_;
  }
  // One for all generations: their tiers are shared, and may use the same staging. A move has tiers
  // of its own; but in the same staging it may not use what the other has given up.
  const bool shares =
      input.before != nullptr && (!input.move || input.before->staging_owner_ == staging_owner_);
  transfer_memory_ =
      shares ? input.before->transfer_memory_ : std::make_shared<io::TransferMemory>();
  transfer_memory_->Keep(staging_owner_);
  leases_.resize(bytes_.size());
  transfers_.resize(bytes_.size());
  const SlotPlan& slots = input.plan.placement.record_slots;
  if (slots.slots > 0) {
    pool_ =
        std::make_unique<staging::SlotPool>(input.staging.first(slots.bytes()), slots.slot_bytes);
  }
  if (input.plan.placement.gradient_slots.slots > 0) {
    gradient_slot_ = input.staging.data() + slots.bytes();
  }
}

Records::~Records() {
  parts_.clear();  // what is in flight ends before its slots go
  leases_.clear();
  transfer_memory_->Drop(staging_owner_);
}

absl::Status Records::AddPart(const Input& input) {
  auto part = std::make_shared<Part>(input.books.ledger);
  ZH_RETURN_IF_ERROR(AllocateHost(input, *part));
  arrays_ = in_memory_;
  ZH_RETURN_IF_ERROR(CreateTier(input, *part));
  parts_.push_back(std::move(part));
  return absl::OkStatus();
}

// One buffer for each kind of array, cut record by record.
absl::Status Records::AllocateHost(const Input& input, Part& part) {
  const size_t first = in_memory_.size();
  const std::vector<bool>& on_disk = input.plan.placement.states;
  in_memory_.resize(bytes_.size());
  const auto allocate = [&](MemoryKind kind, int64_t ArrayBytes::*bytes, auto set) {
    int64_t all = 0;
    for (size_t i = first; i < bytes_.size(); ++i) all += on_disk[i] ? 0 : bytes_[i].*bytes;
    ZH_ASSIGN_OR_RETURN(memory::HostBuffer buffer,
                        memory::HostBuffer::Allocate(all, kind, input.books.ledger));
    auto* at = static_cast<std::byte*>(buffer.data());
    for (size_t i = first; i < bytes_.size(); ++i) {
      if (on_disk[i] || bytes_[i].*bytes == 0) continue;
      set(in_memory_[i], std::exchange(at, at + bytes_[i].*bytes));
    }
    part.buffers.push_back(std::move(buffer));
    return absl::OkStatus();
  };
  ZH_RETURN_IF_ERROR(allocate(MemoryKind::kMaster, &ArrayBytes::master,
                              [](RecordArrays& arrays, std::byte* at) { arrays.master = at; }));
  ZH_RETURN_IF_ERROR(allocate(
      MemoryKind::kMoment1, &ArrayBytes::moment1,
      [](RecordArrays& arrays, std::byte* at) { arrays.moment1 = reinterpret_cast<float*>(at); }));
  return allocate(
      MemoryKind::kMoment2, &ArrayBytes::moment2,
      [](RecordArrays& arrays, std::byte* at) { arrays.moment2 = reinterpret_cast<float*>(at); });
}

// Where the sections of records from `first` on lie in their slot, and which go to the tier;
// returns the sizes of those.
std::vector<int64_t> Records::PlaceSections(const Input& input, Part& part, size_t first) {
  const Placement& placement = input.plan.placement;
  std::vector<int64_t> payload_bytes;
  for (size_t i = first; i < bytes_.size(); ++i) {
    const layout::Record& record = input.layout.records()[i];
    const ArrayBytes& bytes = bytes_[i];
    int64_t slot_offset = 0;
    const auto place = [&](Section section, bool on_disk) {
      const int64_t section_bytes[] = {bytes.Of(section)};
      Place& its = places_[i].of(section);
      its.slot_offset = slot_offset;
      slot_offset += tiers::NvmeTier::SlotBytes(section_bytes);
      if (!on_disk) return;
      its.index = std::ssize(payload_bytes);
      payload_bytes.push_back(section_bytes[0]);
    };
    if (placement.states[i]) {
      place(Section::kStates, true);
      part.on_disk.master += bytes.master;
      part.on_disk.moment1 += bytes.moment1;
      part.on_disk.moment2 += bytes.moment2;
    }
    if (placement.gradients[record.space]) {
      place(Section::kGradient, true);
      part.gradients_on_disk += bytes.copy;
    }
    if (placement.copies[record.space]) {
      place(Section::kCopy, !placement.drop_copies);
      part.on_disk.copy += placement.drop_copies ? 0 : bytes.copy;
    }
    // A whole master beside it makes it anew without it.
    places_[i].reads_copy = bytes.master < record.elems * SizeOf(DType::kFloat32);
  }
  return payload_bytes;
}

absl::Status Records::CreateTier(const Input& input, Part& part) {
  const size_t first = places_.size();
  places_.resize(bytes_.size());
  tiers::NvmeTier::Settings settings;
  settings.payload_bytes = PlaceSections(input, part, first);
  part.Count(+1);
  if (settings.payload_bytes.empty()) return absl::OkStatus();
  settings.folders = part.folders = input.options.nvme_paths;
  settings.shares =
      input.before == nullptr ? std::vector<double>() : input.before->KnownShares(part.folders);
  if (input.pinned) settings.slots = {input.staging};
  settings.depth = input.plan.placement.transfers();
  settings.timeout_s = input.timeout_s;
  settings.memory = transfer_memory_;
  settings.notice = input.books.notice;
  ZH_ASSIGN_OR_RETURN(std::unique_ptr<io::IoBackend> backend, CreateBackend(input));
  settings.backend = [&backend] { return std::move(backend); };
  ZH_ASSIGN_OR_RETURN(part.tier, tiers::NvmeTier::Create(std::move(settings)));
  for (size_t i = first; i < bytes_.size(); ++i) {
    for (Place& place : places_[i].sections) {
      if (place.index >= 0) place.tier = part.tier.get();
    }
  }
  return absl::OkStatus();
}

// What was measured of these folders; empty when nothing was.
std::vector<double> Records::KnownShares(const std::vector<std::string>& folders) const {
  for (const auto& part : parts_) {
    if (part->tier != nullptr && part->folders == folders) return part->tier->shares();
  }
  return {};
}

RecordArrays Records::ArraysIn(std::byte* slot, int64_t record) const {
  RecordArrays arrays = in_memory_[record];
  const ArrayBytes& bytes = bytes_[record];
  const auto payload = [&](Section section) {
    const int64_t offset = places_[record].of(section).slot_offset;
    return offset < 0 ? nullptr : tiers::NvmeTier::Payload(slot + offset);
  };
  if (std::byte* from = payload(Section::kStates)) {
    const auto take = [&from](int64_t count) {
      return count == 0 ? nullptr : std::exchange(from, from + count);
    };
    arrays.master = take(bytes.master);
    arrays.moment1 = reinterpret_cast<float*>(take(bytes.moment1));
    arrays.moment2 = reinterpret_cast<float*>(take(bytes.moment2));
  }
  arrays.gradient = payload(Section::kGradient);
  arrays.copy = payload(Section::kCopy);
  return arrays;
}

void Records::Lease(int64_t record) {
  std::optional<staging::Lease> lease = pool_->TryLease();
  ZH_CHECK(lease.has_value() && !leases_[record], record);
  leases_[record] = *std::move(lease);
  arrays_[record] = ArraysIn(leases_[record].data(), record);
}

Records::Sections Records::Read(int64_t record) const {
  return Sections(kWritten).first(places_[record].reads_copy ? 2 : 1);
}

void Records::Fetch(int64_t record, Done done, void* context) {
  Lease(record);
  Move(record, Read(record), io::Direction::kRead, {done, context});
}

void Records::FetchGradient(int64_t record, Done done, void* context) {
  Move(record, kReduced, io::Direction::kRead, {done, context});
}

void Records::Store(int64_t record, Done done, void* context) {
  Move(record, kWritten, io::Direction::kWrite, {done, context});
}

// Those of the sections that are on disk.
void Records::Move(int64_t record, Sections sections, io::Direction direction,
                   std::pair<Done, void*> told) {
  Transfers& transfers = transfers_[record];
  transfers.left = 1 + static_cast<int>(std::ssize(sections));
  std::tie(transfers.done, transfers.context) = told;
  const auto move =
      direction == io::Direction::kRead ? &tiers::NvmeTier::Fetch : &tiers::NvmeTier::Store;
  for (const Section section : sections) {
    const Place& place = places_[record].of(section);
    if (place.tier == nullptr) {
      OneMoved(&transfers, absl::OkStatus());
    } else {
      (place.tier->*move)(place.index, leases_[record].data() + place.slot_offset, &OneMoved,
                          &transfers);
    }
  }
  OneMoved(&transfers, absl::OkStatus());
}

void Records::OneMoved(void* context, absl::Status status) {
  auto& transfers = *static_cast<Transfers*>(context);
  if (!status.ok()) transfers.status = std::move(status);
  if (--transfers.left > 0) return;
  transfers.done(transfers.context, std::exchange(transfers.status, absl::OkStatus()));
}

void Records::Release(int64_t record) {
  arrays_[record] = in_memory_[record];
  leases_[record].Release();
}

absl::Status Records::CheckSections(int64_t record, Sections sections) const {
  for (const Section section : sections) {
    const Place& place = places_[record].of(section);
    if (place.tier == nullptr) continue;
    ZH_RETURN_IF_ERROR(place.tier->Check(place.index, leases_[record].data() + place.slot_offset));
  }
  return absl::OkStatus();
}

absl::Status Records::Check(int64_t record) const {
  ZH_RETURN_IF_ERROR(CheckSections(record, Read(record)));
  return CheckSections(record, kReduced);
}

void Records::Seal(int64_t record) { SealSections(record, kWritten); }

void Records::SealSections(int64_t record, Sections sections) {
  for (const Section section : sections) {
    const Place& place = places_[record].of(section);
    if (place.tier == nullptr) continue;
    place.tier->Seal(place.index, leases_[record].data() + place.slot_offset);
  }
}

void Records::StoreGradient(int64_t record, std::byte* slot, Done done, void* context) {
  const Place& place = places_[record].of(Section::kGradient);
  place.tier->Seal(place.index, slot);
  place.tier->Store(place.index, slot, done, context);
}

void Records::FetchCopy(int64_t record, std::byte* slot, Done done, void* context) {
  const Place& place = places_[record].of(Section::kCopy);
  place.tier->Fetch(place.index, slot, done, context);
}

absl::Status Records::CheckCopy(int64_t record, const std::byte* slot) const {
  const Place& place = places_[record].of(Section::kCopy);
  return place.tier->Check(place.index, slot);
}

absl::Status Records::Visit(int64_t record, bool write, const Visitor& visit) {
  const auto in_memory = [&](Section section) {
    return places_[record].of(section).slot_offset < 0;
  };
  if (std::ranges::all_of(kWritten, in_memory)) {
    visit(arrays_[record]);
    return absl::OkStatus();
  }
  ZH_RETURN_IF_ERROR(visits_hung_);
  const auto move = [&](io::Direction direction) {
    return Await([&](Done done, void* context) {
      Move(record, kWritten, direction, {done, context});
    });
  };
  Lease(record);
  absl::Status status = move(io::Direction::kRead);
  if (status.ok()) status = CheckSections(record, kWritten);
  if (status.ok()) visit(arrays_[record]);
  if (status.ok() && write) {
    Seal(record);
    status = move(io::Direction::kWrite);
  }
  Release(record);
  if (absl::IsUnavailable(status)) visits_hung_.Update(status);
  return status;
}

absl::Status Records::VisitGradient(int64_t record, bool write, const Visitor& visit) {
  const Place& place = places_[record].of(Section::kGradient);
  if (place.tier == nullptr) {
    visit({});
    return absl::OkStatus();
  }
  ZH_RETURN_IF_ERROR(Await([&](Done done, void* context) {
    place.tier->Fetch(place.index, gradient_slot_, done, context);
  }));
  ZH_RETURN_IF_ERROR(place.tier->Check(place.index, gradient_slot_));
  visit({.gradient = tiers::NvmeTier::Payload(gradient_slot_)});
  if (!write) return absl::OkStatus();
  return Await(
      [&](Done done, void* context) { StoreGradient(record, gradient_slot_, done, context); });
}

absl::Status Records::CopyFrom(const Input& input) {
  // Shards that are in memory before and after; a frozen space has no records.
  for (int32_t i = 0; i < std::ssize(input.layout.spaces()); ++i) {
    const SpaceMemory& from = input.memory_before->space(i);
    const SpaceMemory& to = input.memory.space(i);
    const int64_t elems = input.layout.spaces()[i].held_elems;
    for (Array SpaceMemory::*array : {&SpaceMemory::copy, &SpaceMemory::result}) {
      const std::byte* const source = (from.*array).base;
      std::byte* const target = (to.*array).base;
      if (source == nullptr || target == nullptr || source == target) continue;
      std::copy_n(source, elems * SizeOf((to.*array).dtype), target);
    }
  }
  std::vector<std::byte> values;
  for (int64_t i = 0; i < std::ssize(bytes_); ++i) {
    ZH_RETURN_IF_ERROR(CopyRecord(input, i, values));
  }
  return absl::OkStatus();
}

// Through memory of its own: both may use the same staging.
absl::Status Records::CopyRecord(const Input& input, int64_t index,
                                 std::vector<std::byte>& values) {
  const layout::Record& record = input.layout.records()[index];
  const ArrayBytes& bytes = bytes_[index];
  const auto shard = [&](const Array& array) {
    return array.held && array.base != nullptr ? array.At(0, record.held_begin) : nullptr;
  };
  const auto move = [&](bool to, auto visit, std::span<const Piece> pieces) {
    Records& records = to ? *this : *input.before;
    const SpaceMemory& space = (to ? input.memory : *input.memory_before).space(record.space);
    return (records.*visit)(index, to, [&](const RecordArrays& in_slot) {
      RecordArrays arrays = in_slot;
      if (arrays.copy == nullptr) arrays.copy = shard(space.copy);
      if (arrays.gradient == nullptr) arrays.gradient = shard(space.result);
      std::byte* at = values.data();
      for (const Piece& piece : pieces) {
        std::byte* const there = piece.of(arrays);
        to ? std::copy_n(at, piece.bytes, there) : std::copy_n(there, piece.bytes, at);
        at += piece.bytes;
      }
    });
  };
  const auto copy = [&](auto visit, std::initializer_list<Piece> pieces) -> absl::Status {
    int64_t all = 0;
    for (const Piece& piece : pieces) all += piece.bytes;
    values.resize(all);
    ZH_RETURN_IF_ERROR(move(false, visit, pieces));
    return move(true, visit, pieces);
  };
  const auto on_disk = [&](Section section) {
    return places_[index].of(section).index >= 0 ||
           input.before->places_[index].of(section).index >= 0;
  };
  ZH_RETURN_IF_ERROR(copy(&Records::Visit, {{bytes.master, &MasterOf},
                                            {bytes.moment1, &Moment1Of},
                                            {bytes.moment2, &Moment2Of},
                                            {on_disk(Section::kCopy) ? bytes.copy : 0, &CopyOf}}));
  if (!on_disk(Section::kGradient)) return absl::OkStatus();
  return copy(&Records::VisitGradient, {{bytes.copy, &GradientOf}});
}

io::MoverCounters Records::TakeMoved() {
  io::MoverCounters all;
  for (const auto& part : parts_) {
    if (part->tier == nullptr) continue;
    const io::MoverCounters one = part->tier->counters();
    all.read_bytes += one.read_bytes;
    all.written_bytes += one.written_bytes;
    all.busy_read_ns += one.busy_read_ns;
    all.busy_write_ns += one.busy_write_ns;
  }
  io::MoverCounters since = all;
  since.read_bytes -= taken_.read_bytes;
  since.written_bytes -= taken_.written_bytes;
  since.busy_read_ns -= taken_.busy_read_ns;
  since.busy_write_ns -= taken_.busy_write_ns;
  taken_ = all;
  return since;
}

}  // namespace zerohold::engine
