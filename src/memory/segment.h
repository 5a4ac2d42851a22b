// The node's shared segment: one piece of shared memory that all ranks of a node map.
//
// Reserved in full at creation, so that no later touch can fault; named only until every rank has
// opened it (Unlink), so that nothing is left after a crash. A creator killed between Create and
// Unlink leaves its file, /dev/shm/zerohold.PID.*: nobody can be sure to take it away for a dead
// process. Data and atomics only live in it. A forked child may not use its copy of the handle.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace zerohold::memory {

// Identifies the shared-memory mount of this process: equal for processes that can open each
// other's segments (same kernel, same mount), different otherwise.
uint64_t SharedMemoryMount();

class Segment {
 public:
  // Makes a segment of `bytes` (rounded up to pages), mode 0600, under a fresh name that no other
  // job has; a name that is taken leads to another one. Errors: ResourceExhausted with asked bytes,
  // free bytes, the mount, and how to enlarge it; nothing is left then.
  static absl::StatusOr<Segment> Create(int64_t bytes);
  // Opens by the name that Create gave, on the same node. Errors: NotFound.
  static absl::StatusOr<Segment> Open(const std::string& name);
  Segment(Segment&&) noexcept;
  Segment& operator=(Segment&&) noexcept;
  ~Segment();  // the creator unlinks if nobody did

  const std::string& name() const;
  int64_t bytes() const;
  // Takes the name away; mappings stay. Idempotent.
  void Unlink();

 private:
  friend class AddressArena;
  friend class FramePool;
  struct Impl;
  explicit Segment(std::unique_ptr<Impl> impl);
  int descriptor() const;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zerohold::memory
