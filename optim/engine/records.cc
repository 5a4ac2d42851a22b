// Allocates what rests in host memory, makes files for the rest, and moves records between.
#include "optim/engine/records.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <future>
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
absl::StatusOr<std::unique_ptr<io::IoBackend>> CreateBackend(const OffloadOptions& options,
                                                             const base::NoticeSink& notice) {
  ZH_ASSIGN_OR_RETURN(std::unique_ptr<io::IoBackend> backend,
                      ChosenBackend(options.io_engine, notice));
  if (options.read_rate > 0 || options.write_rate > 0) {
    backend = io::CreateThrottledBackend(
        std::move(backend), {.read_rate = options.read_rate, .write_rate = options.write_rate});
  }
  if (options.faults.empty()) return backend;
  return io::CreateFaultyBackend(std::move(backend), io::ParseFaultSpec(options.faults).value());
}

}  // namespace

void Records::Part::Count(int64_t sign) const {
  ledger->Add(Tier::kNvme, MemoryKind::kMaster, sign * on_disk.master);
  ledger->Add(Tier::kNvme, MemoryKind::kMoment1, sign * on_disk.moment1);
  ledger->Add(Tier::kNvme, MemoryKind::kMoment2, sign * on_disk.moment2);
}

absl::StatusOr<std::unique_ptr<Records>> Records::Create(const Input& input) {
  std::unique_ptr<Records> records(new Records(input));
  ZH_RETURN_IF_ERROR(records->AddPart(input));
  if (input.move) ZH_RETURN_IF_ERROR(records->CopyFrom(*input.before));
  return records;
}

Records::Records(const Input& input) {
  for (const layout::Record& record : input.layout.records()) {
    const DType dtype = input.layout.spaces()[record.space].dtype;
    const int64_t fp32_bytes = record.elems * SizeOf(DType::kFloat32);
    bytes_.push_back({.master = record.elems *
                                kernels::MasterBytes({.copy = dtype, .master = input.plan.master}),
                      .moment1 = input.plan.moment1 ? fp32_bytes : 0,
                      .moment2 = input.plan.moment2 ? fp32_bytes : 0});
  }
  if (input.before != nullptr && !input.move) {
    arrays_ = input.before->arrays_;
    on_disk_ = input.before->on_disk_;
    parts_ = input.before->parts_;
  }
  leases_.resize(bytes_.size());
  if (input.plan.slots > 0) {
    pool_ = std::make_unique<staging::SlotPool>(input.staging, input.plan.slot_bytes);
  }
}

Records::~Records() {
  parts_.clear();  // what is in flight ends before its slots go
  leases_.clear();
}

absl::Status Records::AddPart(const Input& input) {
  auto part = std::make_shared<Part>(input.books.ledger);
  ZH_RETURN_IF_ERROR(AllocateHost(input, *part));
  ZH_RETURN_IF_ERROR(CreateTier(input, *part));
  parts_.push_back(std::move(part));
  return absl::OkStatus();
}

// One buffer for each kind of array, cut record by record.
absl::Status Records::AllocateHost(const Input& input, Part& part) {
  const size_t first = arrays_.size();
  arrays_.resize(bytes_.size());
  const auto allocate = [&](MemoryKind kind, int64_t ArrayBytes::*bytes, auto set) {
    int64_t all = 0;
    for (size_t i = first; i < bytes_.size(); ++i)
      all += input.plan.fetched[i] ? 0 : bytes_[i].*bytes;
    ZH_ASSIGN_OR_RETURN(memory::HostBuffer buffer,
                        memory::HostBuffer::Allocate(all, kind, input.books.ledger));
    auto* at = static_cast<std::byte*>(buffer.data());
    for (size_t i = first; i < bytes_.size(); ++i) {
      if (input.plan.fetched[i] || bytes_[i].*bytes == 0) continue;
      set(arrays_[i], std::exchange(at, at + bytes_[i].*bytes));
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

absl::Status Records::CreateTier(const Input& input, Part& part) {
  const size_t first = on_disk_.size();
  on_disk_.resize(bytes_.size());
  tiers::NvmeTier::Settings settings;
  for (size_t i = first; i < bytes_.size(); ++i) {
    if (!input.plan.fetched[i]) continue;
    on_disk_[i].index = std::ssize(settings.payload_bytes);
    settings.payload_bytes.push_back(bytes_[i].all());
    part.on_disk.master += bytes_[i].master;
    part.on_disk.moment1 += bytes_[i].moment1;
    part.on_disk.moment2 += bytes_[i].moment2;
  }
  part.Count(+1);
  if (settings.payload_bytes.empty()) return absl::OkStatus();
  settings.folders = input.options.nvme_paths;
  if (input.pinned) settings.slots = {input.staging};
  settings.notice = input.books.notice;
  ZH_ASSIGN_OR_RETURN(std::unique_ptr<io::IoBackend> backend,
                      CreateBackend(input.options, input.books.notice));
  settings.backend = [&backend] { return std::move(backend); };
  ZH_ASSIGN_OR_RETURN(part.tier, tiers::NvmeTier::Create(std::move(settings)));
  for (size_t i = first; i < bytes_.size(); ++i) {
    if (input.plan.fetched[i]) on_disk_[i].tier = part.tier.get();
  }
  return absl::OkStatus();
}

RecordArrays Records::Cut(std::byte* from, const ArrayBytes& bytes) {
  const auto take = [&](int64_t count) {
    return count == 0 ? nullptr : std::exchange(from, from + count);
  };
  RecordArrays arrays;
  arrays.master = take(bytes.master);
  arrays.moment1 = reinterpret_cast<float*>(take(bytes.moment1));
  arrays.moment2 = reinterpret_cast<float*>(take(bytes.moment2));
  return arrays;
}

void Records::Fetch(int64_t record, Done done, void* context) {
  std::optional<staging::Lease> lease = pool_->TryLease();
  ZH_CHECK(lease.has_value() && !leases_[record], record);
  std::byte* const slot = lease->data();
  leases_[record] = *std::move(lease);
  arrays_[record] = Cut(tiers::NvmeTier::Payload(slot), bytes_[record]);
  on_disk_[record].tier->Fetch(on_disk_[record].index, slot, done, context);
}

void Records::Store(int64_t record, Done done, void* context) {
  on_disk_[record].tier->Store(on_disk_[record].index, leases_[record].data(), done, context);
}

void Records::Release(int64_t record) {
  arrays_[record] = {};
  leases_[record].Release();
}

absl::Status Records::Check(int64_t record) const {
  const OnDisk& place = on_disk_[record];
  if (place.tier == nullptr) return absl::OkStatus();
  return place.tier->Check(place.index, leases_[record].data());
}

void Records::Seal(int64_t record) {
  const OnDisk& place = on_disk_[record];
  if (place.tier != nullptr) place.tier->Seal(place.index, leases_[record].data());
}

absl::Status Records::Await(int64_t record, bool store) {
  std::promise<absl::Status> moved;
  const auto done = [](void* context, absl::Status status) {
    static_cast<std::promise<absl::Status>*>(context)->set_value(std::move(status));
  };
  store ? Store(record, done, &moved) : Fetch(record, done, &moved);
  return moved.get_future().get();
}

absl::Status Records::Visit(int64_t record, bool write,
                            const std::function<void(const RecordArrays&)>& visit) {
  if (on_disk_[record].tier == nullptr) {
    visit(arrays_[record]);
    return absl::OkStatus();
  }
  absl::Status status = Await(record, false);
  if (status.ok()) status = Check(record);
  if (status.ok()) visit(arrays_[record]);
  if (status.ok() && write) {
    Seal(record);
    status = Await(record, true);
  }
  Release(record);
  return status;
}

// Through memory of its own: both may use the same staging.
absl::Status Records::CopyFrom(Records& before) {
  std::vector<std::byte> values;
  for (size_t i = 0; i < bytes_.size(); ++i) {
    const ArrayBytes& bytes = bytes_[i];
    values.resize(bytes.all());
    const RecordArrays between = Cut(values.data(), bytes);
    const auto copy = [&](const RecordArrays& from, const RecordArrays& to) {
      std::copy_n(from.master, bytes.master, to.master);
      std::copy_n(from.moment1, bytes.moment1 / SizeOf(DType::kFloat32), to.moment1);
      std::copy_n(from.moment2, bytes.moment2 / SizeOf(DType::kFloat32), to.moment2);
    };
    const auto record = static_cast<int64_t>(i);
    ZH_RETURN_IF_ERROR(
        before.Visit(record, false, [&](const RecordArrays& from) { copy(from, between); }));
    ZH_RETURN_IF_ERROR(Visit(record, true, [&](const RecordArrays& to) { copy(between, to); }));
  }
  return absl::OkStatus();
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
