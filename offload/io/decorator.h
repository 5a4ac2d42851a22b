// What a backend that lies around another one does in any case: it passes transfers on under
// numbers of its own, and holds completions back as long as it likes.
//
// Threads: as IoBackend. Nothing is allocated after Open.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "offload/io/backend.h"
#include "offload/io/completion_queue.h"
#include "offload/io/in_flight_table.h"
#include "src/telemetry/trace.h"

namespace zerohold::io {

// `Passed` is what is remembered of a transfer that was passed on, `Held` a completion that is held
// back.
template <typename Passed, typename Held>
class Decorator : public IoBackend {
 public:
  Decorator(const char* what, std::unique_ptr<IoBackend> under)
      : under_(std::move(under)), name_(std::string(what) + " " + under_->name()) {}

  const char* name() const final { return name_.c_str(); }

  absl::Status Open(std::span<const int> descriptors, std::span<const std::span<std::byte>> memory,
                    int depth) final {
    passed_.Reset(depth);
    tags_.resize(depth);
    batch_.reserve(depth);
    arrived_.resize(depth);
    held_.reserve(depth);
    ready_.reserve(depth);
    return under_->Open(descriptors, memory, depth);
  }

  void Submit(std::span<const Transfer> transfers) final {
    batch_.clear();
    for (const Transfer& transfer : transfers) Start(transfer);
    if (!batch_.empty()) under_->Submit(batch_);
  }

  // What is held back has been carried out.
  void Cancel(uint64_t tag) final {
    for (int i = 0; i < passed_.capacity(); ++i) {
      const bool passed = passed_.Find(i) != nullptr && tags_[i] == tag;
      if (passed) return under_->Cancel(static_cast<uint64_t>(i));
    }
  }

  int64_t Reap(std::span<Completion> completions, int64_t timeout_ns) final {
    const int64_t deadline_ns = telemetry::NowNs() + timeout_ns;
    for (;;) {
      const int64_t due_ns = std::min(deadline_ns, ReleaseDue());
      const int64_t left_ns = std::max<int64_t>(due_ns - telemetry::NowNs(), 0);
      const int64_t count = under_->Reap(arrived_, ready_.empty() ? left_ns : 0);
      for (int64_t i = 0; i < count; ++i) {
        Arrive(passed_.Take(arrived_[i].tag), arrived_[i].result);
      }
      ReleaseDue();
      if (count == 0 || !ready_.empty()) return TakeFront(ready_, completions);
    }
  }

  void Wake() final { under_->Wake(); }

 protected:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // Passes the transfer on, or makes its completion ready.
  virtual void Start(const Transfer& transfer) = 0;
  // One that was passed on is complete: makes that ready, or holds it back.
  virtual void Arrive(const Passed& passed, int64_t result) = 0;
  // Makes ready what is held back no longer; returns when the next one is due.
  virtual int64_t ReleaseDue() = 0;

  void Pass(Transfer transfer, const Passed& passed) {
    const auto number = passed_.Add(passed);
    tags_[number] = std::exchange(transfer.tag, static_cast<uint64_t>(number));
    batch_.push_back(transfer);
  }
  bool any_passed() const { return passed_.size() > 0; }

  std::vector<Held> held_;
  std::vector<Completion> ready_;

 private:
  const std::unique_ptr<IoBackend> under_;
  const std::string name_;
  InFlightTable<Passed> passed_;
  std::vector<uint64_t> tags_;  // that those were given
  std::vector<Transfer> batch_;
  std::vector<Completion> arrived_;
};

}  // namespace zerohold::io
