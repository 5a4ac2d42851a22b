// mlock, and what its refusal means.
#include "offload/staging/pin.h"

#include <absl/strings/str_cat.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace zerohold::staging {
namespace {

std::string Limit() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return absl::StrCat(limit.rlim_cur, " bytes");
}

}  // namespace

absl::Status Pin(std::span<std::byte> memory) {
  if (memory.empty() || mlock(memory.data(), memory.size()) == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("locking ", memory.size(), " bytes of staging memory was refused (",
                   strerror(errno), "); the limit of locked memory is ", Limit(),
                   ": raise it by ulimit -l, the unit's LimitMEMLOCK, or the container's memlock"));
}

}  // namespace zerohold::staging
