// Physical memory that can be moved under a unit's addresses and away again, in whole frames.
//
// The memory is a piece of the node's segment, which peers map too, or a private memfd (a file,
// because it is mapped twice; it needs no room on /dev/shm). It is mapped twice at creation, both
// times present: the home view never moves, and what registers memory (devices, io_uring) and the
// engine's threads use it; the movable view is what Attach moves, page tables and all, into an
// address arena, and Detach takes back. Pages are small, 4 KiB, unless the administrator gives
// shared memory huge ones (transparent_hugepage/shmem_enabled; off on most systems).
//
// Threads: Attach and Detach from one thread at a time, any one; the bytes from all threads.
// Invariants:
//  1. home() and the addresses given to Attach never change what they mean.
//  2. What is detached faults when touched, and its addresses are never free for another mmap.
//  3. The bytes are counted once in the ledger and once in Pss; RSS (VmHWM) counts them twice.
//  4. A forked child has neither view.
#pragma once

#include <absl/status/statusor.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/memory/extents.h"
#include "src/memory/ledger.h"
#include "src/memory/segment.h"

namespace zerohold::memory {

class FramePool {
 public:
  // `bytes` is rounded up to frames (base::kFrameBytes); 0 is legal: home() is null. The memory is
  // zeroed. `ledger` outlives the pool.
  // Errors: ResourceExhausted with asked and available bytes.
  static absl::StatusOr<std::unique_ptr<FramePool>> CreatePrivate(int64_t bytes, MemoryKind kind,
                                                                  Ledger* ledger);
  // [offset, +bytes) of the segment, `offset` at a frame; the segment may go before the pool.
  static absl::StatusOr<std::unique_ptr<FramePool>> CreateInSegment(const Segment& segment,
                                                                    const Extent& piece,
                                                                    MemoryKind kind,
                                                                    Ledger* ledger);
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;
  // What is attached stays attached until its arena ends; either may end first.
  ~FramePool();

  char* home() const { return home_; }
  // Where an extent's bytes lie there.
  std::byte* At(const Extent& extent) const {
    return reinterpret_cast<std::byte*>(home_ + extent.offset);
  }
  int64_t bytes() const { return bytes_; }
  // False on kernels that cannot move shared mappings (before 5.13): every attach then maps its
  // pages one by one, about 0.2 s per GiB. Worth a notice.
  bool moves() const { return movable_ != nullptr || bytes_ == 0; }

  // Puts the bytes of `extent` at `address` too: a multiple of a frame, inside an AddressArena that
  // has nothing attached there. About 0.12 ms per GiB and 5 to 10 us.
  // Errors: ResourceExhausted naming the limit; `address` then faults as before. FailedPrecondition
  // in a forked child.
  absl::Status Attach(const Extent& extent, char* address);
  // Takes them away. The arena still has to be there. Requires: Attach(extent, address).
  // Errors: as Attach; `address` may then still be readable.
  absl::Status Detach(const Extent& extent, char* address);

 private:
  FramePool(MemoryKind kind, Ledger* ledger);
  absl::Status MapViews(int64_t bytes, int descriptor, int64_t descriptor_offset);
  absl::Status Move(char* from, char* to, int64_t bytes) const;
  absl::Status CheckCaller(const Extent& extent, char* address, bool attached) const;
  void Note(const Extent& extent, char* address);

  const MemoryKind kind_;
  Ledger* const ledger_;
  const pid_t pid_;  // of the process that has the views
  int64_t bytes_ = 0;
  char* home_ = nullptr;
  char* movable_ = nullptr;
  int descriptor_ = -1;
  int64_t descriptor_offset_ = 0;
  std::vector<char*> attached_;  // per frame: where; null when at home alone
};

}  // namespace zerohold::memory
