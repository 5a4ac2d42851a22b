// Threads that the system may refuse: limits of processes and of memory are met where they are
// made. Constructors of what has a thread throw then, as std::thread's does; who makes an engine or
// a mover out of them does it here.
#pragma once

#include <absl/status/status.h>

#include <new>
#include <string>
#include <system_error>

namespace zerohold::base {

// Runs `start`, whose std::thread constructors may throw. Requires: what it has made until then is
// destroyed, or joined by its owner, when it throws. Errors: ResourceExhausted naming the limit.
template <typename Start>
absl::Status StartThreads(Start start) {
  std::string why;
  try {
    start();
    return absl::OkStatus();
  } catch (const std::system_error& error) {
    why = error.what();
  } catch (const std::bad_alloc& error) {
    why = error.what();
  }
  return absl::ResourceExhaustedError(
      "threads: the system gives no more: " + why +
      "; raise `ulimit -u`, `ulimit -v` or the limit of processes of the job's control group");
}

}  // namespace zerohold::base
