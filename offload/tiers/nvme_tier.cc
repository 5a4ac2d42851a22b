// Places records, moves them, checks them.
#include "offload/tiers/nvme_tier.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "src/base/check.h"
#include "src/base/hash.h"
#include "src/base/status_macros.h"

namespace zerohold::tiers {
namespace {

constexpr uint64_t kFormat = 0x3144524f4345525a;  // "ZRECORD1"

}  // namespace

int64_t NvmeTier::Place::bytes() const {
  return kHeaderBytes + base::AlignUp(payload_bytes, base::kPageBytes);
}

int64_t NvmeTier::SlotBytes(std::span<const int64_t> payload_bytes) {
  const int64_t longest =
      payload_bytes.empty() ? 0 : *std::max_element(payload_bytes.begin(), payload_bytes.end());
  return kHeaderBytes + base::AlignUp(longest, base::kPageBytes);
}

absl::StatusOr<std::unique_ptr<NvmeTier>> NvmeTier::Create(Settings settings) {
  ZH_CHECK(!settings.folders.empty());
  if (settings.shares.empty()) {
    if (settings.disks.rate == nullptr) {
      const auto bytes =
          std::accumulate(settings.payload_bytes.begin(), settings.payload_bytes.end(), int64_t{0});
      settings.disks = RealDisks(bytes, settings.timeout_s);
    }
    ZH_ASSIGN_OR_RETURN(settings.shares, SharesOf(settings.folders, settings.disks));
  }
  std::unique_ptr<NvmeTier> tier(new NvmeTier);
  tier->shares_ = settings.shares;
  const std::vector<int64_t> sizes = tier->PlaceRecords(settings);
  std::vector<io::File> files;
  for (size_t i = 0; i < sizes.size(); ++i) {
    ZH_ASSIGN_OR_RETURN(io::RecordFile file,
                        io::RecordFile::Create(settings.folders[i], sizes[i], settings.notice));
    files.push_back({file.descriptor(), file.folder()});
    tier->files_->push_back(std::move(file));
  }
  tier->memory_ = settings.memory != nullptr ? std::move(settings.memory)
                                             : std::make_shared<io::TransferMemory>();
  ZH_ASSIGN_OR_RETURN(tier->mover_,
                      io::Mover::Create(settings.backend(), std::move(files), settings.slots,
                                        {.depth = settings.depth,
                                         .timeout_s = settings.timeout_s,
                                         .memory = tier->memory_,
                                         .files = tier->files_}));
  return tier;
}

// Each record goes to the file that is furthest behind its share.
std::vector<int64_t> NvmeTier::PlaceRecords(const Settings& settings) {
  std::vector<int64_t> sizes(settings.folders.size());
  places_.reserve(settings.payload_bytes.size());
  for (const int64_t payload_bytes : settings.payload_bytes) {
    size_t file = 0;
    const auto filled = [&](size_t i) {
      return static_cast<double>(sizes[i]) / settings.shares[i];
    };
    for (size_t i = 1; i < sizes.size(); ++i) {
      if (filled(i) < filled(file)) file = i;
    }
    const Place place = {static_cast<int>(file), sizes[file], payload_bytes, 0};
    sizes[file] += place.bytes();
    places_.push_back(place);
  }
  return sizes;
}

void NvmeTier::Move(int64_t record, std::byte* slot, io::Direction direction,
                    std::pair<Done, void*> told) {
  const Place& place = places_[record];
  mover_->Move({.direction = direction,
                .file = place.file,
                .offset_bytes = place.offset_bytes,
                .memory = slot,
                .bytes = place.bytes(),
                .done = told.first,
                .context = told.second,
                .record = record});
}

void NvmeTier::Fetch(int64_t record, std::byte* slot, Done done, void* context) {
  if (memory_->given_up()) return done(context, memory_->why());
  const Place& place = places_[record];
  if (place.version == 0) {
    std::memset(slot, 0, place.bytes());
    return done(context, absl::OkStatus());
  }
  Move(record, slot, io::Direction::kRead, {done, context});
}

void NvmeTier::Store(int64_t record, std::byte* slot, Done done, void* context) {
  if (memory_->given_up()) return done(context, memory_->why());
  Move(record, slot, io::Direction::kWrite, {done, context});
}

absl::Status NvmeTier::Check(int64_t record, const std::byte* slot) const {
  const Place& place = places_[record];
  if (place.version == 0) return absl::OkStatus();
  Header header;
  std::memcpy(&header, slot, sizeof(header));
  const auto lost = [&](const auto&... why) {
    return absl::DataLossError(absl::StrCat(Name(record), " ", why...));
  };
  if (header.format != kFormat || header.record != record) {
    return lost("is not what was stored there: its header is of another record, or of none");
  }
  if (header.version != place.version) {
    return lost("is stale: version ", header.version, " came back, ", place.version,
                " was stored last");
  }
  const std::span payload(slot + kHeaderBytes, place.payload_bytes);
  if (header.payload_bytes != place.payload_bytes || header.checksum != base::Hash(payload, 0)) {
    return lost(
        "came back with other bytes than were stored: the checksum differs; "
        "check the health of the disk");
  }
  return absl::OkStatus();
}

void NvmeTier::Seal(int64_t record, std::byte* slot) {
  Place& place = places_[record];
  const std::span payload(slot + kHeaderBytes, place.payload_bytes);
  const Header header = {.format = kFormat,
                         .record = record,
                         .version = ++place.version,
                         .payload_bytes = place.payload_bytes,
                         .checksum = base::Hash(payload, 0)};
  std::memcpy(slot, &header, sizeof(header));
}

int64_t NvmeTier::file_bytes() const {
  int64_t bytes = 0;
  for (const io::RecordFile& file : *files_) bytes += file.bytes();
  return bytes;
}

std::string NvmeTier::Name(int64_t record) const {
  const Place& place = places_[record];
  return absl::StrCat("tier nvme: record ", record, " in ", (*files_)[place.file].folder(),
                      " at offset ", place.offset_bytes);
}

}  // namespace zerohold::tiers
