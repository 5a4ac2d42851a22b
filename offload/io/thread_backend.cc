// Each thread does one system call at a time and reports what the kernel said.
#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "offload/io/backends.h"
#include "offload/io/completion_queue.h"
#include "src/base/check.h"
#include "src/base/threads.h"

namespace zerohold::io {
namespace {

class ThreadBackend final : public IoBackend {
 public:
  explicit ThreadBackend(int threads) : threads_(threads) { ZH_CHECK(threads >= 1, threads); }

  ~ThreadBackend() override {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    submitted_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    for (const int descriptor : descriptors_) close(descriptor);
  }

  const char* name() const override { return "threads"; }

  // Works on duplicates, so that a transfer that starts late can never meet another file under the
  // same number.
  absl::Status Open(std::span<const int> descriptors, std::span<const std::span<std::byte>>,
                    int depth) override {
    for (const int descriptor : descriptors) {
      descriptors_.push_back(fcntl(descriptor, F_DUPFD_CLOEXEC, 0));
      if (descriptors_.back() >= 0) continue;
      const int error = errno;
      descriptors_.pop_back();
      return absl::UnavailableError(absl::StrCat(
          "disk transfers by threads: cannot duplicate a descriptor: ", std::strerror(error),
          error == EMFILE ? "; raise `ulimit -n`" : ""));
    }
    waiting_.reserve(depth);
    done_.Reserve(depth);
    return base::StartThreads([this] {
      for (int i = 0; i < threads_; ++i) {
        workers_.emplace_back([this] { Run(); });
        pthread_setname_np(workers_.back().native_handle(), "zh-io-worker");
      }
    });
  }

  void Submit(std::span<const Transfer> transfers) override {
    {
      std::lock_guard lock(mutex_);
      waiting_.insert(waiting_.end(), transfers.begin(), transfers.end());
    }
    if (transfers.size() == 1) {
      submitted_.notify_one();
    } else {
      submitted_.notify_all();
    }
  }

  // A system call cannot be ended; one that no thread has begun can.
  void Cancel(uint64_t tag) override {
    std::lock_guard lock(mutex_);
    const auto is_it = [tag](const Transfer& transfer) { return transfer.tag == tag; };
    if (std::erase_if(waiting_, is_it) > 0) done_.Push({tag, -ECANCELED});
  }

  int64_t Reap(std::span<Completion> completions, int64_t timeout_ns) override {
    return done_.Reap(completions, timeout_ns);
  }

  void Wake() override { done_.Wake(); }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      submitted_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
      if (closing_) return;
      const Transfer transfer = waiting_.front();
      waiting_.erase(waiting_.begin());
      lock.unlock();
      done_.Push({transfer.tag, Call(transfer)});
      lock.lock();
    }
  }

  int64_t Call(const Transfer& transfer) const {
    const int descriptor = descriptors_[transfer.file];
    const ssize_t moved =
        transfer.direction == Direction::kRead
            ? pread(descriptor, transfer.memory, transfer.bytes, transfer.offset_bytes)
            : pwrite(descriptor, transfer.memory, transfer.bytes, transfer.offset_bytes);
    return moved >= 0 ? moved : -errno;
  }

  const int threads_;
  std::vector<int> descriptors_;
  std::mutex mutex_;
  std::condition_variable submitted_;
  std::vector<Transfer> waiting_;  // guarded by mutex_, as closing_; the first is the next
  bool closing_ = false;
  CompletionQueue done_;
  std::vector<std::thread> workers_;
};

}  // namespace

std::unique_ptr<IoBackend> CreateThreadBackend(int threads) {
  return std::make_unique<ThreadBackend>(threads);
}

}  // namespace zerohold::io
