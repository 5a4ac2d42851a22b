#include "src/memory/addresses.h"

#include <absl/strings/str_cat.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "src/base/align.h"
#include "src/memory/available.h"

namespace zerohold::memory {
namespace {

using base::kFrameBytes;

constexpr int64_t kMaxReservedBytes = int64_t{1} << 56;  // more than any address space
constexpr int kNoMemory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

}  // namespace

absl::Status Exhausted(const char* what, int64_t bytes, const char* mend) {
  const int error = errno;
  return absl::ResourceExhaustedError(absl::StrCat(what, ": asked ", bytes, " bytes, available ",
                                                   AvailableMemoryBytes(), " bytes (",
                                                   std::strerror(error), "); ", mend));
}

absl::StatusOr<char*> ReserveAddresses(int64_t bytes) {
  void* found = MAP_FAILED;
  errno = ENOMEM;
  const int64_t reserved = bytes <= kMaxReservedBytes ? base::AlignUp(bytes, kFrameBytes) : 0;
  if (reserved > 0) {
    found = mmap(nullptr, reserved + kFrameBytes, PROT_NONE, kNoMemory, -1, 0);
  }
  if (found == MAP_FAILED) {
    return Exhausted("addresses", bytes, "raise the limit on virtual memory (ulimit -v)");
  }
  char* begin = static_cast<char*>(found);
  const auto misfit = static_cast<int64_t>(reinterpret_cast<uintptr_t>(begin) % kFrameBytes);
  const int64_t head = misfit == 0 ? 0 : kFrameBytes - misfit;
  if (head > 0) munmap(begin, head);
  munmap(begin + head + reserved, kFrameBytes - head);
  madvise(begin + head, reserved, MADV_DONTFORK);
  return begin + head;
}

void ReturnAddresses(char* begin, int64_t bytes) {
  munmap(begin, base::AlignUp(bytes, kFrameBytes));
}

bool CoverAddresses(char* at, int64_t bytes) {
  if (mmap(at, bytes, PROT_NONE, kNoMemory | MAP_FIXED, -1, 0) == MAP_FAILED) return false;
  madvise(at, bytes, MADV_DONTFORK);  // refused, it costs nobody anything: there is no memory here
  return true;
}

bool MapShared(char* at, int64_t bytes, int descriptor, int64_t offset) {
  if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, descriptor,
           offset) != MAP_FAILED &&
      madvise(at, bytes, MADV_DONTFORK) == 0) {
    return true;
  }
  const int error = errno;
  CoverAddresses(at, bytes);
  errno = error;
  return false;
}

}  // namespace zerohold::memory
