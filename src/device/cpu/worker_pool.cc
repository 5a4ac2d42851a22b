// A loop is open while it has indices left to give; a worker joins and leaves it under the mutex,
// so that none that wakes late can mix two loops up, and the caller waits for those who joined, not
// for all.
#include "src/device/cpu/worker_pool.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "src/base/check.h"
#include "src/base/float_mode.h"

namespace zerohold::device {
namespace {

// About what a sleep and a wake-up cost: a wait that ends sooner is cheaper spun.
constexpr std::chrono::microseconds kSpin(20);

// True when `ready` came true within kSpin.
template <typename Ready>
bool Spin(const Ready& ready) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return true;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

}  // namespace

struct WorkerPool::Impl {
  // Also of a pool that got fewer threads than it asked for.
  ~Impl() {
    {
      std::lock_guard lock(mutex);
      closing = true;
    }
    changed.notify_all();
    for (std::thread& worker : workers) worker.join();
  }

  struct Loop {
    int64_t count = 0;
    Body body = nullptr;
    void* context = nullptr;
  };

  void Work(const Loop& loop) {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < loop.count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      loop.body(loop.context, i);
    }
  }

  void WorkerMain() {
    const base::StandardFloatMode floats;
    int64_t seen = 0;
    std::unique_lock lock(mutex);
    while (true) {
      lock.unlock();
      Spin([&] { return opened.load(std::memory_order_relaxed) != seen; });
      lock.lock();
      changed.wait(lock, [&] { return closing || opened.load(std::memory_order_relaxed) != seen; });
      if (closing) return;
      seen = opened.load(std::memory_order_relaxed);
      if (!open) continue;  // came too late for it
      joined.fetch_add(1, std::memory_order_relaxed);
      const Loop mine = loop;
      lock.unlock();
      Work(mine);
      lock.lock();
      if (joined.fetch_sub(1, std::memory_order_relaxed) == 1) left.notify_one();
    }
  }

  // All but the counters that are spun on and drawn from belong to the mutex.
  std::mutex mutex;
  std::condition_variable changed;  // opened or closing
  std::condition_variable left;     // joined became 0
  Loop loop;
  bool open = false;
  bool closing = false;
  std::atomic<int64_t> opened{0};  // loops so far
  std::atomic<int> joined{0};      // workers inside the loop
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::vector<std::thread> workers;
};

WorkerPool::WorkerPool(int threads) : impl_(std::make_unique<Impl>()) {
  ZH_CHECK(threads >= 1, threads);
  for (int i = 1; i < threads; ++i) {
    impl_->workers.emplace_back([impl = impl_.get()] { impl->WorkerMain(); });
    pthread_setname_np(impl_->workers.back().native_handle(), "zh-update");
  }
}

WorkerPool::~WorkerPool() = default;

int WorkerPool::threads() const { return static_cast<int>(impl_->workers.size()) + 1; }

void WorkerPool::ParallelFor(int64_t count, Body body, void* context) {
  if (count <= 1 || impl_->workers.empty()) {
    for (int64_t i = 0; i < count; ++i) body(context, i);
    return;
  }
  Impl& pool = *impl_;
  const Impl::Loop loop{count, body, context};
  {
    std::lock_guard lock(pool.mutex);
    pool.loop = loop;
    pool.open = true;
    pool.next.store(0, std::memory_order_relaxed);
    pool.opened.fetch_add(1, std::memory_order_relaxed);
  }
  pool.changed.notify_all();
  pool.Work(loop);
  {
    std::lock_guard lock(pool.mutex);
    pool.open = false;
  }
  Spin([&] { return pool.joined.load(std::memory_order_relaxed) == 0; });
  std::unique_lock lock(pool.mutex);
  pool.left.wait(lock, [&] { return pool.joined.load(std::memory_order_relaxed) == 0; });
}

}  // namespace zerohold::device
