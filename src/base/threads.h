// Threads that the system may refuse: limits of processes and of memory are met where they are
// made.
#pragma once

#include <absl/status/status.h>

#include <string>
#include <system_error>

namespace zerohold::base {

// Runs `start`, whose std::thread constructors may throw. Requires: what it has made until then is
// destroyed, or joined by its owner, when it throws. Errors: ResourceExhausted naming the limit.
template <typename Start>
absl::Status StartThreads(Start start) {
  try {
    start();
    return absl::OkStatus();
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        std::string("threads: the system gives no more: ") + error.what() +
        "; raise `ulimit -u`, `ulimit -v` or the limit of processes of the job's control group");
  }
}

}  // namespace zerohold::base
