// The affinity mask, of machines with any number of CPUs.
#include <sched.h>

#include <cerrno>
#include <span>
#include <vector>

#include "src/base/check.h"
#include "src/base/hash.h"
#include "src/device/cpu/worker_pool.h"

namespace zerohold::device {
namespace {

// The calling thread's mask as the kernel has it, without the zeros at its end.
std::vector<unsigned long> AffinityMask() {
  // The kernel refuses a mask shorter than its own, and does not say how long that is.
  for (size_t words = 16;; words *= 2) {
    std::vector<unsigned long> mask(words);
    const int rc =
        sched_getaffinity(0, words * sizeof(mask[0]), reinterpret_cast<cpu_set_t*>(mask.data()));
    ZH_CHECK(rc == 0 || errno == EINVAL, errno);
    if (rc != 0) continue;
    while (!mask.empty() && mask.back() == 0) mask.pop_back();
    return mask;
  }
}

}  // namespace

int AllowedCores() {
  int cores = 0;
  for (const unsigned long word : AffinityMask()) cores += __builtin_popcountl(word);
  return cores;
}

uint64_t AffinityFingerprint() {
  const std::vector<unsigned long> mask = AffinityMask();
  return base::Hash(std::as_bytes(std::span(mask)));
}

}  // namespace zerohold::device
