// A backend whose completions the test gives, when and as it likes.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "offload/io/backend.h"
#include "offload/io/completion_queue.h"

namespace zerohold::io {

// What the test and the backend share; outlives both.
class Script {
 public:
  // Waits until `count` transfers were submitted, or two seconds; returns all so far.
  std::vector<Transfer> Submitted(size_t count) {
    for (int i = 0; i < 2000; ++i) {
      {
        std::lock_guard lock(mutex_);
        if (submitted_.size() >= count) return submitted_;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::lock_guard lock(mutex_);
    return submitted_;
  }
  void Complete(const Transfer& transfer, int64_t result) { done_.Push({transfer.tag, result}); }
  // What a transfer that is cancelled completes with, at once; nothing: it cannot be.
  void OnCancel(std::optional<int64_t> result) { on_cancel_ = result; }

 private:
  friend class ScriptedBackend;
  std::mutex mutex_;
  std::vector<Transfer> submitted_;
  CompletionQueue done_;
  std::optional<int64_t> on_cancel_;
};

class ScriptedBackend final : public IoBackend {
 public:
  explicit ScriptedBackend(Script* script) : script_(script) {}
  const char* name() const override { return "scripted"; }
  absl::Status Open(std::span<const int>, std::span<const std::span<std::byte>>, int) override {
    return absl::OkStatus();
  }
  void Submit(std::span<const Transfer> transfers) override {
    std::lock_guard lock(script_->mutex_);
    script_->submitted_.insert(script_->submitted_.end(), transfers.begin(), transfers.end());
  }
  void Cancel(uint64_t tag) override {
    if (script_->on_cancel_) script_->done_.Push({tag, *script_->on_cancel_});
  }
  int64_t Reap(std::span<Completion> completions, int64_t timeout_ns) override {
    return script_->done_.Reap(completions, timeout_ns);
  }
  void Wake() override { script_->done_.Wake(); }

 private:
  Script* const script_;
};

}  // namespace zerohold::io
