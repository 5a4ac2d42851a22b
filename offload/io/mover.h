// Moves exactly N bytes between a slot and a file, or says why not, on a thread of its own (the
// ring owner). Short transfers are resubmitted at the right place, EINTR and EAGAIN are tried
// again, end of file inside a transfer is DataLoss, and every other errno is told with path, offset
// and bytes.
//
// Threads: Move from any thread, `done` too. `done` is called once for each on the ring owner's
// thread, which it must not block. Invariants:
//  1. Transfers start in the order of the Moves, as far as `depth` allows, none is skipped.
//  2. Every Move is answered within the timeout and, where the backend has it, kCancelSeconds more.
//  3. After warm-up nothing is allocated, but for the words of an error.
//
// A transfer that times out is cancelled, which must be waited for a while. If the backend still
// has it then, the kernel may carry it out at any time, even when the process has forgotten it. So
// the memory of all transfers is given up before the answer (transfer_memory.h), and when the mover
// ends, the backend, that memory and the files are left as they are until the process ends.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "offload/io/backend.h"
#include "offload/io/transfer_memory.h"

namespace zerohold::io {

// A file that transfers go to; the descriptor outlives the mover.
struct File {
  int descriptor = -1;
  std::string path;  // for messages: the folder that was given
};

struct MoverCounters {
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
  int64_t resubmitted = 0;    // after a short transfer, EINTR or EAGAIN
  int64_t busy_read_ns = 0;   // time with at least one read in flight, up to the last event
  int64_t busy_write_ns = 0;  // with at least one write
};

class Mover {
 public:
  using Done = void (*)(void* context, absl::Status status);
  struct Request {
    Direction direction = Direction::kRead;
    int file = 0;
    int64_t offset_bytes = 0;
    std::byte* memory = nullptr;
    int64_t bytes = 0;
    Done done = nullptr;
    void* context = nullptr;
    int64_t record = -1;  // for messages: the number that the tier gives it
  };
  struct Settings {
    int depth = 64;            // transfers in flight at a time
    double timeout_s = 600.0;  // from Move to `done`: then Unavailable naming the transfer
    // What all transfers use, and what the files' descriptors belong to; null: the caller's own.
    std::shared_ptr<TransferMemory> memory = nullptr;
    std::shared_ptr<const void> files = nullptr;
  };
  static constexpr double kCancelSeconds = 1.0;

  // Errors: those of backend->Open.
  static absl::StatusOr<std::unique_ptr<Mover>> Create(std::unique_ptr<IoBackend> backend,
                                                       std::vector<File> files,
                                                       std::span<const std::span<std::byte>> memory,
                                                       const Settings& settings);
  // Waits until all Moves are answered, not for what was given up.
  ~Mover();

  void Move(const Request& request);
  const char* backend_name() const;
  MoverCounters counters() const;  // any thread

 private:
  struct Impl;
  explicit Mover(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace zerohold::io
