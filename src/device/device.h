// A device: memory next to it, in-order queues of work on it (streams), and points in those queues
// that others can wait for (events). Knows no MPI, no file, no optimizer.
//
// Threads: calls on one stream come from one thread at a time; events may be queried from any.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>

namespace zerohold::device {

// Marks a point in a stream. Recorded again, it marks the new one. A fresh event counts as reached.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool Reached() const = 0;  // not blocking
  virtual void Wait() const = 0;     // blocks the calling thread
};

// Work in the order of the calls; every call returns at once, and none allocates after the stream's
// first `queue_depth` entries are in use (then the call waits for room).
class Stream {
 public:
  using HostFunction = void (*)(void* context);

  virtual ~Stream() = default;
  // Runs on the stream's thread, after what came before. The context outlives it.
  virtual void Run(HostFunction function, void* context) = 0;
  // Ranges do not overlap; both outlive the copy.
  virtual void Copy(void* to, const void* from, int64_t bytes) = 0;
  virtual void Zero(void* to, int64_t bytes) = 0;
  virtual void Record(Event& event) = 0;
  // Later work of this stream starts after the point that `event` marks at the time of this call.
  virtual void WaitFor(const Event& event) = 0;
  virtual void Synchronize() = 0;  // blocks until all is done
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const char* name() const = 0;
  virtual std::unique_ptr<Stream> CreateStream(const char* name) = 0;  // the name is a literal
  virtual std::unique_ptr<Event> CreateEvent() = 0;
  // Device memory, aligned to 4 KiB, contents unspecified.
  // Errors: ResourceExhausted with asked and available bytes.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes) = 0;
  virtual void Free(void* memory) = 0;
};

}  // namespace zerohold::device
