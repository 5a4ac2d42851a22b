// Records that rest in files: where each lies, its header, and how one comes and goes.
//
// A record is a header of one page, then its payload, whole pages in all, so that one transfer
// moves it. The header tells format, record, version and the checksum (XXH3) of the payload. The
// version counts the record's stores and is compared with the count that this object keeps, so that
// a write that never happened, or happened elsewhere, is found by the next reader. Records go to
// the folders in proportion to their rates, each whole in one file. A record that was never stored
// is all zeros and is not read.
//
// Threads: Fetch and Store from one thread; `done` on the thread of I/O, or at once from Fetch.
// Check and Seal on the thread that updates the record, between the two.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "offload/io/backend.h"
#include "offload/io/mover.h"
#include "offload/io/record_file.h"
#include "offload/tiers/striping.h"
#include "src/base/align.h"
#include "src/base/notice.h"

namespace zerohold::tiers {

class NvmeTier {
 public:
  using Done = io::Mover::Done;

  struct Settings {
    std::vector<std::string> folders;
    std::vector<double> shares;               // of each folder, > 0; empty: as `disks` tells
    DiskProbe disks;                          // of tests; empty: the real ones
    std::vector<int64_t> payload_bytes;       // of each record
    std::vector<std::span<std::byte>> slots;  // memory to be registered
    // Whose all slots are; null: the caller's, who keeps them for ever once a transfer timed out.
    std::shared_ptr<io::TransferMemory> memory = nullptr;
    int depth = 64;  // transfers in flight
    double timeout_s = 600.0;
    // Makes what moves the bytes; tests put faults or a throttle around it.
    std::function<std::unique_ptr<io::IoBackend>()> backend;
    base::NoticeSink notice;
  };
  // Preallocates all files. Errors: SharesOf's, RecordFile::Create's and Mover::Create's.
  static absl::StatusOr<std::unique_ptr<NvmeTier>> Create(Settings settings);

  // Of a slot that any of these records fits in: a multiple of 4 KiB.
  static int64_t SlotBytes(std::span<const int64_t> payload_bytes);
  static std::byte* Payload(std::byte* slot) { return slot + kHeaderBytes; }

  // Starts moving the record into, or out of, the slot. `done` is called once, with the mover's
  // status, which names the record too; it may be called before Fetch returns. When memory was
  // given up (mover.h) nothing is moved or written any more, and the answer is that transfer's.
  void Fetch(int64_t record, std::byte* slot, Done done, void* context);
  void Store(int64_t record, std::byte* slot, Done done, void* context);

  // What was fetched is what was stored last. Errors: DataLoss naming record, folder and offset.
  absl::Status Check(int64_t record, const std::byte* slot) const;
  // Writes the header of the next version. Store follows.
  void Seal(int64_t record, std::byte* slot);

  io::MoverCounters counters() const { return mover_->counters(); }
  const char* backend_name() const { return mover_->backend_name(); }
  int64_t file_bytes() const;  // of all folders
  int64_t file_bytes(size_t folder) const { return (*files_)[folder].bytes(); }
  // What the placement of records follows: another tier over the same folders that is given them
  // places the same records alike.
  const std::vector<double>& shares() const { return shares_; }

 private:
  static constexpr int64_t kHeaderBytes = base::kPageBytes;

  struct Header {
    uint64_t format;
    int64_t record;
    int64_t version;
    int64_t payload_bytes;
    uint64_t checksum;
  };
  struct Place {
    int file;
    int64_t offset_bytes;
    int64_t payload_bytes;
    int64_t version;  // stores so far
    int64_t bytes() const;
  };

  NvmeTier() = default;
  // Sets each record's file and offset; gives each file's size.
  std::vector<int64_t> PlaceRecords(const Settings& settings);
  void Move(int64_t record, std::byte* slot, io::Direction direction, std::pair<Done, void*> told);
  std::string Name(int64_t record) const;

  std::vector<double> shares_;
  std::vector<Place> places_;
  std::shared_ptr<std::vector<io::RecordFile>> files_ =
      std::make_shared<std::vector<io::RecordFile>>();
  std::shared_ptr<io::TransferMemory> memory_;
  std::unique_ptr<io::Mover> mover_;  // ends before the files
};

}  // namespace zerohold::tiers
