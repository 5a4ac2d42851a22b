// Spans in time, and the Chrome-trace file that shows them. A trace that was not asked for costs
// one branch a span and allocates nothing.
//
// Threads: Record may be called from any thread; Write once, when no other thread records.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <memory>
#include <string>

namespace zerohold::telemetry {

// Lanes of the trace, one row each.
enum class Lane : uint8_t { kCompute, kCalls, kComm, kUpdate, kCount };

// Steady clock.
int64_t NowNs();

class Trace {
 public:
  // Events are kept in blocks of fixed size and written by Write; `pid` is the rank. An empty path
  // makes a trace that records nothing.
  Trace(std::string path, int pid);
  ~Trace();
  // Whether a trace can be written there; leaves nothing. InvalidArgument naming trace_path.
  static absl::Status CheckPath(const std::string& path);
  bool enabled() const { return impl_ != nullptr; }

  // `name` must outlive the trace (a literal). `index` is shown beside it when >= 0 (a unit, a
  // bucket).
  void Record(Lane lane, const char* name, int64_t index, int64_t begin_ns, int64_t end_ns);

  // Writes {"traceEvents":[...]} with process and lane names. Internal errors: the path and errno's
  // text.
  absl::Status Write();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Measures its own life.
class Span {
 public:
  Span(Trace& trace, Lane lane, const char* name, int64_t index = -1)
      : trace_(trace),
        lane_(lane),
        name_(name),
        index_(index),
        begin_ns_(trace.enabled() ? NowNs() : 0) {}
  ~Span() {
    if (trace_.enabled()) trace_.Record(lane_, name_, index_, begin_ns_, NowNs());
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  Trace& trace_;
  Lane lane_;
  const char* name_;
  int64_t index_;
  int64_t begin_ns_;
};

}  // namespace zerohold::telemetry
