#include "src/comm/executor.h"

#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

#include "src/base/blocking_queue.h"
#include "src/base/float_mode.h"

namespace zerohold::comm {

struct Executor::Impl {
  // Tells waiters that `finished` may answer otherwise now.
  void Changed() {
    std::lock_guard lock(mutex);
    ++changes;
    changed.notify_all();
  }

  // The own thread: until the task that runs nothing.
  void Run() {
    const base::StandardFloatMode floats;
    for (Task task = tasks.Pop(); task.run != nullptr; task = tasks.Pop()) {
      task.run(task.context, task.argument);
      Changed();
    }
  }

  base::BlockingQueue<Task> tasks;
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t changes = 0;  // guarded by mutex
  std::thread thread;
};

Executor::Executor(bool own_thread) : impl_(std::make_unique<Impl>()) {
  if (own_thread) impl_->thread = std::thread([impl = impl_.get()] { impl->Run(); });
}

Executor::~Executor() {
  impl_->tasks.Push({});
  if (own_thread()) {
    impl_->thread.join();
  } else {
    impl_->Run();
  }
}

bool Executor::own_thread() const { return impl_->thread.joinable(); }

void Executor::Post(Task task) {
  impl_->tasks.Push(task);
  if (!own_thread()) impl_->Changed();
}

void Executor::Wait(bool (*finished)(void* context), void* context) {
  std::unique_lock lock(impl_->mutex);
  for (;;) {
    // Whatever happens from here on counts as a change, so none is missed.
    const uint64_t seen = impl_->changes;
    lock.unlock();
    if (finished(context)) return;
    std::optional<Task> task;
    if (!own_thread()) task = impl_->tasks.TryPop();
    if (task) {
      const base::StandardFloatMode floats;
      task->run(task->context, task->argument);
      impl_->Changed();
    }
    lock.lock();
    impl_->changed.wait(lock, [&] { return impl_->changes != seen; });
  }
}

void Executor::Wake() { impl_->Changed(); }

}  // namespace zerohold::comm
