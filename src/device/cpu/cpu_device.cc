// Streams as queues with a worker each, and events as positions in them.
//
// A stream's entries end in their order, so a point in it is a number of entries, and an event is a
// pair of stream and number. Recording costs no entry; a recorded point never changes when the
// event is recorded again, so a wait that was queued for the old one stays right. What others wait
// on (Progress) is shared, and so outlives the stream.
#include "src/device/cpu/cpu_device.h"

#include <absl/strings/str_cat.h>
#include <pthread.h>
#include <sys/sysinfo.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/float_mode.h"

namespace zerohold::device {
namespace {

// Entries that one stream holds before its caller waits for room.
constexpr uint64_t kQueueDepth = 256;

// How many entries of a stream have ended.
class Progress {
 public:
  bool Reached(uint64_t point) const { return ended_.load(std::memory_order_acquire) >= point; }

  void Wait(uint64_t point) const {
    if (Reached(point)) return;
    std::unique_lock lock(mutex_);
    advanced_.wait(lock, [&] { return Reached(point); });
  }

  void Advance() {
    {
      // The lock keeps a waiter from going to sleep between its look and the notice.
      std::lock_guard lock(mutex_);
      ended_.fetch_add(1, std::memory_order_release);
    }
    advanced_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable advanced_;
  std::atomic<uint64_t> ended_{0};
};

// `progress` is null for a point that nobody need wait for.
struct Point {
  std::shared_ptr<const Progress> progress;
  uint64_t entries = 0;

  bool Reached() const { return progress == nullptr || progress->Reached(entries); }
  void Wait() const {
    if (progress != nullptr) progress->Wait(entries);
  }
};

class CpuEvent final : public Event {
 public:
  bool Reached() const override { return point().Reached(); }
  void Wait() const override { point().Wait(); }

  Point point() const {
    std::lock_guard lock(mutex_);
    return point_;
  }
  void set_point(Point point) {
    std::lock_guard lock(mutex_);
    point_ = std::move(point);
  }

 private:
  mutable std::mutex mutex_;
  Point point_;
};

struct Nothing {
  void operator()() const {}
};
struct Call {
  Stream::HostFunction function;
  void* context;
  void operator()() const { function(context); }
};
struct CopyBytes {
  void* to;
  const void* from;
  int64_t bytes;
  void operator()() const { std::memcpy(to, from, bytes); }
};
struct ZeroBytes {
  void* to;
  int64_t bytes;
  void operator()() const { std::memset(to, 0, bytes); }
};
struct WaitForPoint {
  Point point;
  void operator()() const { point.Wait(); }
};
using Work = std::variant<Nothing, Call, CopyBytes, ZeroBytes, WaitForPoint>;

class CpuStream final : public Stream {
 public:
  explicit CpuStream(const char* name) : worker_([this] { Loop(); }) {
    char short_name[16] = {};  // the kernel's limit
    std::strncpy(short_name, name, sizeof(short_name) - 1);
    pthread_setname_np(worker_.native_handle(), short_name);
  }

  // Ends what was queued first.
  ~CpuStream() override {
    {
      std::lock_guard lock(mutex_);
      closed_ = true;
    }
    pushed_changed_.notify_one();
    worker_.join();
  }

  void Run(HostFunction function, void* context) override { Push(Call{function, context}); }
  void Copy(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) Push(CopyBytes{to, from, bytes});
  }
  void Zero(void* to, int64_t bytes) override {
    if (bytes > 0) Push(ZeroBytes{to, bytes});
  }
  void Record(Event& event) override {
    static_cast<CpuEvent&>(event).set_point({progress_, pushed_});
  }
  void WaitFor(const Event& event) override {
    Point point = static_cast<const CpuEvent&>(event).point();
    if (point.progress == progress_ || point.Reached()) return;
    Push(WaitForPoint{std::move(point)});
  }
  void Synchronize() override { progress_->Wait(pushed_); }

 private:
  template <typename Entry>
  void Push(Entry entry) {
    if (pushed_ >= kQueueDepth) progress_->Wait(pushed_ - kQueueDepth + 1);
    {
      std::lock_guard lock(mutex_);
      ring_[pushed_ % kQueueDepth] = std::move(entry);
      ++pushed_;
    }
    pushed_changed_.notify_one();
  }

  void Loop() {
    const base::StandardFloatMode floats;
    for (uint64_t next = 0;; ++next) {
      {
        std::unique_lock lock(mutex_);
        pushed_changed_.wait(lock, [&] { return pushed_ > next || closed_; });
        if (pushed_ == next) return;
      }
      // Push does not come back to this slot before Advance.
      Work& work = ring_[next % kQueueDepth];
      std::visit([](const auto& run) { run(); }, work);
      work = Nothing();  // lets go of another stream's progress
      progress_->Advance();
    }
  }

  const std::shared_ptr<Progress> progress_ = std::make_shared<Progress>();
  std::mutex mutex_;
  std::condition_variable pushed_changed_;
  std::array<Work, kQueueDepth> ring_;
  uint64_t pushed_ = 0;  // only the caller writes it, so that it alone may read without the mutex
  bool closed_ = false;
  std::thread worker_;  // last: starts when all else is there
};

class CpuDevice final : public Device {
 public:
  const char* name() const override { return "cpu"; }
  std::unique_ptr<Stream> CreateStream(const char* name) override {
    return std::make_unique<CpuStream>(name);
  }
  std::unique_ptr<Event> CreateEvent() override { return std::make_unique<CpuEvent>(); }

  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    ZH_CHECK(bytes >= 0, bytes);
    struct sysinfo node = {};
    sysinfo(&node);
    const auto unit = static_cast<int64_t>(node.mem_unit);
    void* memory = nullptr;
    // More than there is at all may still be promised by the kernel.
    if (bytes <= unit * static_cast<int64_t>(node.totalram + node.totalswap)) {
      memory = std::aligned_alloc(
          base::kPageBytes, std::max(base::kPageBytes, base::AlignUp(bytes, base::kPageBytes)));
    }
    if (memory != nullptr) return memory;
    return absl::ResourceExhaustedError(
        absl::StrCat("memory of the cpu device: asked ", bytes, " bytes, available ",
                     unit * static_cast<int64_t>(node.freeram + node.freeswap),
                     " bytes; give the job more memory, or the model more ranks"));
  }
  void Free(void* memory) override { std::free(memory); }
};

}  // namespace

std::unique_ptr<Device> CreateCpuDevice() { return std::make_unique<CpuDevice>(); }

}  // namespace zerohold::device
