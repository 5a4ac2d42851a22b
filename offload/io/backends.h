// The backends there are. Each is one file behind the interface; one conformance suite tests all.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "offload/io/backend.h"
#include "src/base/notice.h"

namespace zerohold::io {

// liburing: registered files and memory, one ring, batched submission. Errors: Unavailable with the
// errno when the kernel refuses io_uring (a container, seccomp, locked memory).
absl::StatusOr<std::unique_ptr<IoBackend>> CreateUringBackend();
// pread and pwrite on `threads` threads: everywhere.
std::unique_ptr<IoBackend> CreateThreadBackend(int threads);
// Files are memory of this process, by index; descriptors are ignored. Reads past what was written
// are end of file (0 bytes).
std::unique_ptr<IoBackend> CreateMemoryBackend();
// io_uring, or threads where it is refused, which `notice` says once with the reason.
std::unique_ptr<IoBackend> CreateBestBackend(const base::NoticeSink& notice);

// What FaultyBackend does to transfers, by a seeded schedule.
struct FaultSpec {
  uint64_t seed = 0;
  // Of each transfer: probabilities in [0, 1].
  double short_transfer = 0.0;  // fewer bytes, whole blocks of 4 KiB, perhaps 0 of a write
  double again = 0.0;           // -EAGAIN or -EINTR
  double eio = 0.0;
  double enospc = 0.0;    // writes
  double bit_flip = 0.0;  // one bit of what a read brings
  double stale = 0.0;     // a write that reports success and is not done
  double late = 0.0;      // held back until later ones have completed
  int64_t first = 0;      // transfers before this one are left alone
};
// "eio=0.01,short=0.5,seed=7,..."; InvalidArgument naming the key and the legal ones.
absl::StatusOr<FaultSpec> ParseFaultSpec(std::string_view text);
std::unique_ptr<IoBackend> CreateFaultyBackend(std::unique_ptr<IoBackend> under,
                                               const FaultSpec& spec);

// Rates in bytes per second, 0 for no limit; latency of each transfer. Waits, never burns a core.
// Reads and writes are two links of their own.
struct ThrottleSpec {
  double read_rate = 0.0;
  double write_rate = 0.0;
  double latency_s = 0.0;
};
std::unique_ptr<IoBackend> CreateThrottledBackend(std::unique_ptr<IoBackend> under,
                                                  const ThrottleSpec& spec);

}  // namespace zerohold::io
