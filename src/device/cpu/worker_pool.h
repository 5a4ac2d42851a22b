// The cores that this rank was given, as a pool that one loop at a time is spread over: what a
// kernel launch is on a GPU. The caller works too, so a pool of one has no thread of its own.
//
// Threads: ParallelFor from one thread at a time. It allocates nothing. Waits sleep and never
// spin for long: ranks share cores with others.
#pragma once

#include <cstdint>
#include <memory>

namespace zerohold::device {

class WorkerPool {
 public:
  using Body = void (*)(void* context, int64_t index);

  explicit WorkerPool(int threads);  // >= 1; throws std::system_error where there are none
  ~WorkerPool();
  int threads() const;
  // Calls body(context, i) once for every i in [0, count), in any order on any thread; returns when
  // all are done. What they wrote is then visible to the caller.
  void ParallelFor(int64_t count, Body body, void* context);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Cores in the calling thread's affinity mask (>= 1); OMP_NUM_THREADS is not read.
int AllowedCores();
// Identifies that mask, so that ranks of a node can tell whether they share cores.
uint64_t AffinityFingerprint();

}  // namespace zerohold::device
