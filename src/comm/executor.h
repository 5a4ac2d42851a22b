// Runs posted tasks in their order: on its own thread (the communication thread), or, where the
// message library allows only the caller's threads, inside calls that the caller makes anyway.
//
// Threads: Post from any thread. Allocates nothing once as many tasks as ever wait have waited.
#pragma once

#include <cstdint>
#include <memory>

namespace zerohold::comm {

// What to run: plain, so that posting costs nothing.
struct Task {
  void (*run)(void* context, int64_t argument) = nullptr;
  void* context = nullptr;
  int64_t argument = 0;
};

class Executor {
 public:
  explicit Executor(bool own_thread);  // throws std::system_error where it gets no thread
  ~Executor();                         // runs what was posted, then ends
  bool own_thread() const;
  void Post(Task task);

  // Without an own thread: runs tasks on the calling thread as they come, until `finished(context)`
  // is true; checked after every task and after every Wake. With an own thread: sleeps until then.
  void Wait(bool (*finished)(void* context), void* context);
  void Wake();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace zerohold::comm
