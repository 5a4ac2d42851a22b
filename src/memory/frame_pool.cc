// Moving is one mremap that leaves the source mapped (MREMAP_DONTUNMAP), and at once a mapping
// without access over the source: at no moment is either range a hole. It moves page tables, not
// pages, as long as both sides begin at a multiple of 2 MiB.
#include "src/memory/frame_pool.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/memory/addresses.h"
#include "src/memory/available.h"
#include "src/memory/memory_file.h"

namespace zerohold::memory {
namespace {

using base::kFrameBytes;

constexpr char kMendMemory[] = "give the job more memory, or max_live_parameters_bytes less";
constexpr char kMendMappings[] = "raise vm.max_map_count or the limit on virtual memory";

// Asked of a mapping of its own, at addresses of the kernel's choice: between 5.7 and 5.12 the
// refusal comes after the destination has been unmapped, and would leave a hole in an arena.
bool KernelMovesSharedMappings() {
  void* from = mmap(nullptr, base::kPageBytes, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (from == MAP_FAILED) return false;
  // The address is a hint, and read although none is fixed.
  void* const anywhere = nullptr;
  void* to =
      mremap(from, base::kPageBytes, base::kPageBytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, anywhere);
  munmap(from, base::kPageBytes);
  if (to == MAP_FAILED) return false;
  munmap(to, base::kPageBytes);
  return true;
}

// A file of zeros without a name, its memory taken now; -1 with errno.
int MakeMemoryFile(int64_t bytes) {
  const int descriptor = memfd_create("zerohold.frames", MFD_CLOEXEC);
  if (descriptor < 0) return -1;
  const int error = ReserveFile(descriptor, bytes);
  if (error == 0) return descriptor;
  close(descriptor);
  errno = error;
  return -1;
}

}  // namespace

FramePool::FramePool(MemoryKind kind, Ledger* ledger)
    : kind_(kind), ledger_(ledger), pid_(getpid()) {}

absl::StatusOr<std::unique_ptr<FramePool>> FramePool::CreatePrivate(int64_t bytes, MemoryKind kind,
                                                                    Ledger* ledger) {
  ZH_CHECK(bytes >= 0, bytes);
  std::unique_ptr<FramePool> pool(new FramePool(kind, ledger));
  if (bytes == 0) return pool;
  const int64_t available = AvailableMemoryBytes();
  errno = ENOMEM;
  if (bytes > available) return Exhausted("frames", bytes, kMendMemory);
  bytes = base::AlignUp(bytes, kFrameBytes);
  const int descriptor = MakeMemoryFile(bytes);
  if (descriptor < 0) {
    return Exhausted("frames", bytes, errno == EFBIG ? "raise `ulimit -f`" : kMendMemory);
  }
  ZH_RETURN_IF_ERROR(pool->MapViews(bytes, descriptor, 0));
  return pool;
}

absl::StatusOr<std::unique_ptr<FramePool>> FramePool::CreateInSegment(const Segment& segment,
                                                                      const Extent& piece,
                                                                      MemoryKind kind,
                                                                      Ledger* ledger) {
  const int64_t bytes = base::AlignUp(piece.bytes, kFrameBytes);
  ZH_CHECK(bytes >= 0 && piece.offset >= 0, piece.bytes, piece.offset);
  ZH_CHECK(piece.offset % kFrameBytes == 0, piece.offset);
  ZH_CHECK(bytes <= segment.bytes() - piece.offset, piece.offset, bytes, segment.bytes());
  std::unique_ptr<FramePool> pool(new FramePool(kind, ledger));
  if (bytes == 0) return pool;
  const int descriptor = fcntl(segment.descriptor(), F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0)
    return Exhausted("frames", bytes, "raise the limit on open files (ulimit -n)");
  ZH_RETURN_IF_ERROR(pool->MapViews(bytes, descriptor, piece.offset));
  return pool;
}

// Takes the descriptor over.
absl::Status FramePool::MapViews(int64_t bytes, int descriptor, int64_t descriptor_offset) {
  descriptor_ = descriptor;
  descriptor_offset_ = descriptor_offset;
  bytes_ = bytes;
  ledger_->Add(Tier::kHost, kind_, bytes_);
  attached_.resize(bytes / kFrameBytes);
  const auto map = [&](char*& view) -> absl::Status {
    ZH_ASSIGN_OR_RETURN(view, ReserveAddresses(bytes));
    return MapShared(view, bytes, descriptor, descriptor_offset)
               ? absl::OkStatus()
               : Exhausted("mapping of frames", bytes, kMendMappings);
  };
  ZH_RETURN_IF_ERROR(map(home_));
  return KernelMovesSharedMappings() ? map(movable_) : absl::OkStatus();
}

FramePool::~FramePool() {
  if (descriptor_ >= 0) close(descriptor_);
  // A forked child has not got the views, and may have something else there.
  if (pid_ != getpid()) return;
  if (home_ != nullptr) ReturnAddresses(home_, bytes_);
  if (movable_ != nullptr) ReturnAddresses(movable_, bytes_);
  ledger_->Add(Tier::kHost, kind_, -bytes_);
}

absl::Status FramePool::Attach(const Extent& extent, char* address) {
  ZH_RETURN_IF_ERROR(CheckCaller(extent, address, false));
  if (extent.bytes == 0) return absl::OkStatus();
  if (movable_ != nullptr) {
    ZH_RETURN_IF_ERROR(Move(movable_ + extent.offset, address, extent.bytes));
  } else if (!MapShared(address, extent.bytes, descriptor_, descriptor_offset_ + extent.offset)) {
    return Exhausted("mapping of frames", extent.bytes, kMendMappings);
  }
  Note(extent, address);
  return absl::OkStatus();
}

absl::Status FramePool::Detach(const Extent& extent, char* address) {
  ZH_RETURN_IF_ERROR(CheckCaller(extent, address, true));
  if (extent.bytes == 0) return absl::OkStatus();
  if (movable_ != nullptr) {
    ZH_RETURN_IF_ERROR(Move(address, movable_ + extent.offset, extent.bytes));
  } else if (!CoverAddresses(address, extent.bytes)) {
    return Exhausted("unmapping of frames", extent.bytes, kMendMappings);
  }
  Note(extent, nullptr);
  return absl::OkStatus();
}

absl::Status FramePool::Move(char* from, char* to, int64_t bytes) const {
  if (mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, to) ==
      MAP_FAILED) {
    const absl::Status status = Exhausted("moving of frames", bytes, kMendMappings);
    // Some refusals come after `to` was unmapped. Nobody else's mapping may be covered, should it
    // have come there since.
    mmap(to, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE,
         -1, 0);
    return status;
  }
  if (CoverAddresses(from, bytes)) return absl::OkStatus();
  return Exhausted("covering of moved frames", bytes, kMendMappings);
}

absl::Status FramePool::CheckCaller(const Extent& extent, char* address, bool attached) const {
  const auto [offset, bytes] = extent;
  ZH_CHECK(offset >= 0 && offset % kFrameBytes == 0, offset);
  ZH_CHECK(bytes >= 0 && bytes % kFrameBytes == 0 && bytes <= bytes_ - offset, offset, bytes,
           bytes_);
  ZH_CHECK(reinterpret_cast<uintptr_t>(address) % kFrameBytes == 0, static_cast<void*>(address));
  for (int64_t i = 0; i < bytes; i += kFrameBytes) {
    char* const at = attached_[(offset + i) / kFrameBytes];
    ZH_CHECK(at == (attached ? address + i : nullptr), offset, i, static_cast<void*>(at));
  }
  if (pid_ == getpid()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("frames belong to process ", pid_, ", which forked this one; use them there"));
}

void FramePool::Note(const Extent& extent, char* address) {
  for (int64_t i = 0; i < extent.bytes; i += kFrameBytes) {
    attached_[(extent.offset + i) / kFrameBytes] = address == nullptr ? nullptr : address + i;
  }
}

}  // namespace zerohold::memory
