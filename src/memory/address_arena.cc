// mmap, three times: to reserve, to attach shared memory, to attach private memory.
#include "src/memory/address_arena.h"

#include <absl/strings/str_cat.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/memory/available.h"

namespace zerohold::memory {
namespace {

using base::AlignUp;
using base::kPageBytes;

// Of a huge page: what is moved in pieces of this size keeps its huge pages.
constexpr int64_t kArenaAlignBytes = int64_t{2} << 20;
constexpr int64_t kMaxArenaBytes = int64_t{1} << 56;  // more than any address space

constexpr int kReserveFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

absl::Status Exhausted(const char* what, int64_t bytes, const char* mend) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": asked ", bytes, " bytes, available ",
                                                   AvailableMemoryBytes(), " bytes (",
                                                   std::strerror(errno), "); ", mend));
}

// Whole pages for `bytes`, at a multiple of a huge page.
absl::StatusOr<char*> ReserveAligned(int64_t bytes) {
  void* found = MAP_FAILED;
  errno = ENOMEM;
  const int64_t mapped = bytes <= kMaxArenaBytes ? AlignUp(bytes, kPageBytes) : 0;
  if (mapped > 0) {
    found = mmap(nullptr, mapped + kArenaAlignBytes, PROT_NONE, kReserveFlags, -1, 0);
  }
  if (found == MAP_FAILED) {
    return Exhausted("addresses", bytes, "raise the limit on virtual memory (ulimit -v)");
  }
  char* begin = static_cast<char*>(found);
  const auto misfit = static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin) % kArenaAlignBytes);
  const int64_t head = misfit == 0 ? 0 : kArenaAlignBytes - misfit;
  if (head > 0) munmap(begin, head);
  munmap(begin + head + mapped, kArenaAlignBytes - head);
  madvise(begin + head, mapped, MADV_DONTFORK);
  return begin + head;
}

// What was attached in part is taken away again, so that a touch faults and nobody else gets the
// addresses.
void Detach(char* at, int64_t bytes) {
  mmap(at, bytes, PROT_NONE, kReserveFlags | MAP_FIXED, -1, 0);
  madvise(at, bytes, MADV_DONTFORK);
}

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
  ZH_ASSIGN_OR_RETURN(arena.base_, ReserveAligned(bytes));
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
  munmap(base_, AlignUp(bytes_, kPageBytes));
  ledger_->Add(Tier::kHost, kind_, -attached_bytes_);
}

absl::Status AddressArena::AttachShared(int64_t offset, int64_t bytes, const Segment& segment,
                                        int64_t segment_offset) {
  const int64_t mapped = CheckedMapBytes(offset, bytes);
  ZH_CHECK(segment_offset >= 0 && segment_offset % kPageBytes == 0, segment_offset);
  ZH_CHECK(mapped <= segment.bytes() - segment_offset, segment_offset, bytes, segment.bytes());
  if (bytes == 0) return absl::OkStatus();
  // The segment is reserved in full, so its pages exist; populating only spares the later faults.
  if (mmap(base_ + offset, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
           segment.descriptor(), segment_offset) == MAP_FAILED) {
    const absl::Status status = Exhausted("mapping of shared memory", bytes,
                                          "raise vm.max_map_count or the limit on virtual memory");
    Detach(base_ + offset, mapped);
    return status;
  }
  madvise(base_ + offset, mapped, MADV_DONTFORK);
  Count(bytes);
  return absl::OkStatus();
}

absl::Status AddressArena::AttachPrivate(int64_t offset, int64_t bytes) {
  constexpr char kMend[] = "give the job more memory, or the model more ranks";
  const int64_t mapped = CheckedMapBytes(offset, bytes);
  if (bytes == 0) return absl::OkStatus();
  errno = ENOMEM;
  const int64_t available = AvailableMemoryBytes();
  if (available > 0 && mapped > available) return Exhausted("memory", bytes, kMend);
  char* at = base_ + offset;
  const bool present = mmap(at, mapped, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED &&
                       madvise(at, mapped, MADV_DONTFORK) == 0 &&
                       // Refused by kernels without huge pages; then the pages are small.
                       (madvise(at, mapped, MADV_HUGEPAGE) == 0 || errno == EINVAL) &&
                       Populate(at, mapped);
  if (!present) {
    const absl::Status status = Exhausted("memory", bytes, kMend);
    Detach(at, mapped);
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
