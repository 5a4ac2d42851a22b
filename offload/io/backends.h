// The backends there are. Each is one file behind the interface; one conformance suite tests all.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "offload/io/backend.h"
#include "src/base/notice.h"

namespace zerohold::io {

// liburing: registered files and memory, one ring, batched submission, at most 255 in flight. Where
// only the registration is refused it goes on without, and `notice` says so at Open.
// Errors: Unavailable with the errno and the limit of locked memory when the kernel refuses
// io_uring (a container, seccomp, Linux before 5.11).
absl::StatusOr<std::unique_ptr<IoBackend>> CreateUringBackend(const base::NoticeSink& notice);
// pread and pwrite on `threads` threads: everywhere.
std::unique_ptr<IoBackend> CreateThreadBackend(int threads);
// Files are memory of this process, by index; descriptors are ignored. Reads past what was written
// are end of file (0 bytes).
std::unique_ptr<IoBackend> CreateMemoryBackend();
// io_uring, or threads where it is refused, which `notice` says once with the reason.
std::unique_ptr<IoBackend> CreateBestBackend(const base::NoticeSink& notice);

// What the faulty backend does to transfers, by a seeded schedule: the same for the same transfers
// in the same order. A transfer that is resubmitted is a new one.
struct FaultSpec {
  int64_t seed = 0;
  // Of each transfer: probabilities in [0, 1].
  double short_transfer = 0.0;  // fewer bytes, whole blocks of 4 KiB, perhaps 0 of a write
  double again = 0.0;           // -EAGAIN or -EINTR
  double eio = 0.0;
  double enospc = 0.0;    // writes
  double bit_flip = 0.0;  // one bit of what a read brings
  double stale = 0.0;     // a write that reports success and is not done
  double late = 0.0;      // held back until up to 4 later ones have completed
  double lost = 0.0;      // not done, and never completed
  // Transfers before the first and behind the last one are left alone.
  int64_t first = 0;
  int64_t last = std::numeric_limits<int64_t>::max();
  // The bytes of a read that bits are flipped in, where it brings them; an end of 0: all.
  int64_t flip_begin = 0;
  int64_t flip_end = 0;
  // Besides, every n-th transfer: half of it is moved, or -EAGAIN or -EINTR. 0: none.
  int64_t halve_every = 0;
  int64_t again_every = 0;
};
// "eio=0.01,short=0.5,seed=7": keys short, again, eio, enospc, flip, stale, late, lost, first,
// seed, halve_every, again_every, last, flip_begin, flip_end. InvalidArgument naming what is wrong
// and the legal keys.
absl::StatusOr<FaultSpec> ParseFaultSpec(std::string_view text);

enum class Fault : uint8_t {
  kShortTransfer,
  kAgain,
  kEio,
  kEnospc,
  kBitFlip,
  kStale,
  kLate,
  kLost,
  kCount
};
// Hears of each that is really done, on the thread that owns the backend: to which transfer, and to
// which byte of it, where it is one.
using FaultSink = std::function<void(Fault, const Transfer&, int64_t byte)>;
std::unique_ptr<IoBackend> CreateFaultyBackend(std::unique_ptr<IoBackend> under,
                                               const FaultSpec& spec, FaultSink told = {});

// Rates in bytes per second, 0 for no limit; latency of each transfer, which those in flight share.
// Waits, never burns a core. Reads and writes are two links of their own.
struct ThrottleSpec {
  double read_rate = 0.0;
  double write_rate = 0.0;
  double latency_s = 0.0;
  bool operator==(const ThrottleSpec&) const = default;
};
std::unique_ptr<IoBackend> CreateThrottledBackend(std::unique_ptr<IoBackend> under,
                                                  const ThrottleSpec& spec);

}  // namespace zerohold::io
