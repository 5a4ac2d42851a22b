#include "src/memory/memory_file.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

namespace zerohold::memory {

// Piece by piece: before Linux 6.18 a signal undoes the call, and one that comes often would undo a
// long one for ever.
int ReserveFile(int descriptor, int64_t bytes) {
  constexpr int64_t kPieceBytes = int64_t{4} << 20;
  rlimit limit = {};
  getrlimit(RLIMIT_FSIZE, &limit);
  if (static_cast<uint64_t>(bytes) > limit.rlim_cur) return EFBIG;  // it would end in SIGXFSZ
  for (int64_t begin = 0; begin < bytes;) {
    const int error = posix_fallocate(descriptor, begin, std::min(kPieceBytes, bytes - begin));
    if (error == 0) begin += kPieceBytes;
    if (error != 0 && error != EINTR) return error;
  }
  return 0;
}

}  // namespace zerohold::memory
