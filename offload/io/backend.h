// Moves bytes between memory and files, as the kernel does it: a completion carries what was moved,
// which may be less than was asked for, or an errno. What is to be done then is said once, above
// (mover.h). Knows no record, tier or checksum.
//
// Threads: one owner for all calls but Wake.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <span>

namespace zerohold::io {

enum class Direction : uint8_t { kRead, kWrite };

// Offset, memory and size are multiples of 4 KiB. All of it stays valid until its completion.
struct Transfer {
  Direction direction = Direction::kRead;
  int file = 0;  // index into what Open was given
  int64_t offset_bytes = 0;
  std::byte* memory = nullptr;
  int64_t bytes = 0;
  uint64_t tag = 0;  // comes back with the completion; any value but the two largest
};

struct Completion {
  uint64_t tag = 0;
  int64_t result = 0;  // bytes moved, from the beginning of the transfer; or -errno
};

class IoBackend {
 public:
  // Waits for what the kernel has; transfers that it was not given yet are dropped.
  virtual ~IoBackend() = default;

  // "io_uring", "threads", "memory"; decorators add theirs before it: "faulty threads".
  virtual const char* name() const = 0;
  // What transfers will use, once, before the first of them: descriptors (which outlive the
  // backend) and memory (which the backend may register with the kernel). At most `depth` transfers
  // are in flight at a time.
  virtual absl::Status Open(std::span<const int> descriptors,
                            std::span<const std::span<std::byte>> memory, int depth) = 0;
  // Starts all of them; not blocking. They may complete in any order.
  virtual void Submit(std::span<const Transfer> transfers) = 0;
  // Asks that a transfer in flight ends soon; not blocking. It completes in any case, with
  // -ECANCELED where it was not begun; and as if nothing had been asked where it cannot be ended.
  virtual void Cancel(uint64_t /*tag*/) {}
  // Completions so far, at most completions.size(); waits for the first one, or for a Wake, for at
  // most timeout_ns (a Wake that came before counts). Returns how many.
  virtual int64_t Reap(std::span<Completion> completions, int64_t timeout_ns) = 0;
  // Any thread: the Reap that waits, or the next one, returns.
  virtual void Wake() = 0;
};

}  // namespace zerohold::io
