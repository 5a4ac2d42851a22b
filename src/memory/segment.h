// The node's shared segment: one piece of shared memory that all ranks of a node map.
//
// It is a file of /dev/shm without a name: it goes with the last process that has it, however that
// ends. Peers open it through the descriptor of the process that made it (/proc/PID/fd/N); where
// they may not (another PID namespace, a process that cannot be traced), it has a name until all
// have opened it.
//
// Invariants:
// 1. A name carries no memory: Reserve comes after Unlink. So a maker killed between CreateNamed
//    and Unlink leaves an empty file, /dev/shm/zerohold.PID.*, and nothing else is ever left.
// 2. What Open answers is the file that was told, not another one that has come to its path.
// 3. Memory is reserved in full before it is mapped, so that no later touch can fault. Data and
//    atomics only live in it. A forked child may not use its copy of the handle.
#pragma once

#include <absl/status/statusor.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>

namespace zerohold::memory {

// Identifies the shared-memory mount of this process: equal for processes that can open each
// other's segments (same kernel, same mount), different otherwise.
uint64_t SharedMemoryMount();

// Where a process of the same mount finds a segment. Of bytes alone: it can be sent.
struct SegmentPlace {
  std::array<char, 64> path{};  // of an open descriptor, or a name; empty: there is no segment
  uint64_t device = 0;
  uint64_t inode = 0;
};

class Segment {
 public:
  // Makes one without a name, mode 0600, and reserves `bytes`. Errors: those of Reserve; Internal
  // where none can be made.
  static absl::StatusOr<Segment> Create(int64_t bytes);
  // Makes an empty one under a fresh name that no other job has; a name that is taken leads to
  // another one. Errors: Internal.
  static absl::StatusOr<Segment> CreateNamed();
  // Opens what another rank of the node has made. Errors: NotFound where nothing is at that path,
  // or another file; Internal naming what the system said.
  static absl::StatusOr<Segment> Open(const SegmentPlace& place);
  Segment(Segment&&) noexcept;
  Segment& operator=(Segment&&) noexcept;
  ~Segment();  // the maker unlinks if nobody did

  // Takes memory for `bytes`, rounded up to pages. Requires: empty, without a name. Errors:
  // ResourceExhausted with asked bytes, free bytes, the mount, and how to enlarge it; the segment
  // is empty then.
  absl::Status Reserve(int64_t bytes);
  SegmentPlace place() const;
  int64_t bytes() const;  // whoever reserved them
  // Takes the name away, if there is one and it is ours; idempotent.
  void Unlink();

 private:
  friend class AddressArena;
  friend class FramePool;
  struct Impl;
  explicit Segment(std::unique_ptr<Impl> impl);
  static absl::StatusOr<Segment> OpenPath(const std::string& path);
  int descriptor() const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zerohold::memory
