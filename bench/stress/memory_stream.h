// The bound of memory: the streams of a step (gradient in; states in and out; copy out, and in
// where it is part of the master) without arithmetic, on as many threads.
#pragma once

#include <cstdint>
#include <memory>

#include "src/device/cpu/worker_pool.h"
#include "src/memory/host_buffer.h"
#include "zerohold/status.h"

namespace zerohold::bench {

class MemoryStream {
 public:
  // Works on memory of at most kMostElems elements, again and again: more than caches hold.
  static constexpr int64_t kMostElems = int64_t{16} << 20;

  struct Shape {
    int64_t elems;        // of a step on this rank
    int64_t state_bytes;  // of an element, as copy_bytes
    int64_t copy_bytes;
    bool copy_is_read;
    int threads;
  };
  static StatusOr<std::unique_ptr<MemoryStream>> Create(const Shape& shape, memory::Ledger* ledger);

  // Of a step on this rank.
  int64_t bytes() const {
    return shape_.elems *
           ((shape_.copy_is_read ? 3 : 2) * shape_.copy_bytes + 2 * shape_.state_bytes);
  }
  double Run();  // seconds

 private:
  explicit MemoryStream(const Shape& shape) : shape_(shape), pool_(shape.threads) {}
  static void RunTile(void* self, int64_t tile);

  const Shape shape_;
  int64_t tiles_ = 0;  // in memory
  memory::HostBuffer gradient_;
  memory::HostBuffer copy_;
  memory::HostBuffer states_;
  device::WorkerPool pool_;
};

}  // namespace zerohold::bench
