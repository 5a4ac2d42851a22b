// How ZeroHold answers: absl::Status and absl::StatusOr, under our own names.
//
// Codes: InvalidArgument and FailedPrecondition are the caller's mistake, and nothing has changed.
// ResourceExhausted names what was asked, what is there, and the setting that mends it. Aborted and
// DeadlineExceeded name the rank that failed or did not come. Unimplemented names the feature that
// this version has not got. A status that a collective call returns is the same on every rank.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace zerohold {

using Status = absl::Status;
template <typename T>
using StatusOr = absl::StatusOr<T>;

}  // namespace zerohold
