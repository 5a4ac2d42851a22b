// Explains a segmentation fault at a registered address in one line on stderr, and passes it on.
//
// The one part of the house with state of the whole process, for a signal handler has no other: the
// handler that was there before, and a table of the maps that live. Nothing is installed unasked.
// Threads: all of it from any. The handler takes no lock, allocates nothing, calls only what is
// async-signal-safe. A forked child inherits handler and maps, and is told that the memory is not
// its own.
#pragma once

#include <absl/status/status.h>
#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zerohold::memory {

// Installs the handler of SIGSEGV, once for the process, later calls do nothing. It hands every
// fault on to the handler that was there, or to the default action, which ends the process with a
// core. Errors: Internal, when the system refuses.
absl::Status InstallFaultReporter();

// Ranges that may fault, and what to say about each; known to the handler while this object lives.
class FaultMap {
 public:
  struct Entry {
    char* begin = nullptr;
    int64_t bytes = 0;
    std::string parameter;
    std::string unit;
    std::string why;  // and what to do: "is not acquired; call Acquire(U) before touching it"
  };
  // Ranges must not overlap. Beyond kMaxMaps maps at a time a map is not heard of by the handler.
  static constexpr int kMaxMaps = 64;
  explicit FaultMap(std::vector<Entry> entries);
  FaultMap(const FaultMap&) = delete;
  FaultMap& operator=(const FaultMap&) = delete;
  ~FaultMap();

  // Writes the line, with its newline, for a fault at `address` into `line`, shortened to fit;
  // returns its length, 0 when the address is in no range. Async-signal-safe.
  int64_t Explain(const char* address, std::span<char> line) const;

 private:
  std::vector<Entry> entries_;  // by begin
  pid_t pid_;
  int slot_;  // in the handler's table; -1: none was free
};

}  // namespace zerohold::memory
