// Reserving is in addresses.cc; here memory is attached, shared or private.
#include "src/memory/address_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/memory/addresses.h"
#include "src/memory/available.h"

namespace zerohold::memory {
namespace {

using base::AlignUp;
using base::kPageBytes;

// Makes private pages present; false with errno.
bool Populate(char* at, int64_t bytes) {
  if (madvise(at, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  for (int64_t i = 0; i < bytes; i += kPageBytes) {  // a kernel before 5.14
    static_cast<volatile char*>(at)[i] = 0;
  }
  return true;
}

}  // namespace

absl::StatusOr<AddressArena> AddressArena::Reserve(int64_t bytes, MemoryKind kind, Ledger* ledger) {
  ZH_CHECK(bytes >= 0, bytes);
  AddressArena arena;
  arena.bytes_ = bytes;
  arena.kind_ = kind;
  arena.ledger_ = ledger;
  arena.pid_ = getpid();
  if (bytes == 0) return arena;
  ZH_ASSIGN_OR_RETURN(arena.base_, ReserveAddresses(bytes));
  return arena;
}

AddressArena::AddressArena(AddressArena&& other) noexcept { *this = std::move(other); }

AddressArena& AddressArena::operator=(AddressArena&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(attached_bytes_, other.attached_bytes_);
  std::swap(kind_, other.kind_);
  std::swap(ledger_, other.ledger_);
  std::swap(pid_, other.pid_);
  return *this;
}

AddressArena::~AddressArena() {
  // A forked child has not got the range, and may have something else there.
  if (base_ == nullptr || pid_ != getpid()) return;
  ReturnAddresses(base_, bytes_);
  ledger_->Add(Tier::kHost, kind_, -attached_bytes_);
}

absl::Status AddressArena::AttachShared(int64_t offset, int64_t bytes, const Segment& segment,
                                        int64_t segment_offset) {
  const int64_t mapped = CheckedMapBytes(offset, bytes);
  ZH_CHECK(segment_offset >= 0 && segment_offset % kPageBytes == 0, segment_offset);
  ZH_CHECK(mapped <= segment.bytes() - segment_offset, segment_offset, bytes, segment.bytes());
  if (bytes == 0) return absl::OkStatus();
  // The segment is reserved in full, so its pages exist; populating only spares the later faults.
  if (!MapShared(base_ + offset, mapped, segment.descriptor(), segment_offset)) {
    return Exhausted("mapping of shared memory", bytes,
                     "raise vm.max_map_count or the limit on virtual memory");
  }
  Count(bytes);
  return absl::OkStatus();
}

absl::Status AddressArena::AttachPrivate(int64_t offset, int64_t bytes) {
  constexpr char kMend[] = "give the job more memory, or the model more ranks";
  const int64_t mapped = CheckedMapBytes(offset, bytes);
  if (bytes == 0) return absl::OkStatus();
  const int64_t available = AvailableMemoryBytes();
  errno = ENOMEM;
  if (mapped > available) return Exhausted("memory", bytes, kMend);
  char* at = base_ + offset;
  const bool present = mmap(at, mapped, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED &&
                       madvise(at, mapped, MADV_DONTFORK) == 0 &&
                       // Refused by kernels without huge pages; then the pages are small.
                       (madvise(at, mapped, MADV_HUGEPAGE) == 0 || errno == EINVAL) &&
                       Populate(at, mapped);
  if (!present) {
    const absl::Status status = Exhausted("memory", bytes, kMend);
    CoverAddresses(at, mapped);
    return status;
  }
  Count(bytes);
  return absl::OkStatus();
}

int64_t AddressArena::CheckedMapBytes(int64_t offset, int64_t bytes) const {
  const int64_t limit = AlignUp(bytes_, kPageBytes);
  ZH_CHECK(offset >= 0 && bytes >= 0 && offset % kPageBytes == 0, offset, bytes);
  ZH_CHECK(offset <= limit && bytes <= limit - offset, offset, bytes, bytes_);
  return AlignUp(bytes, kPageBytes);
}

void AddressArena::Count(int64_t bytes) {
  attached_bytes_ += bytes;
  ledger_->Add(Tier::kHost, kind_, bytes);
}

}  // namespace zerohold::memory
