// How ZeroHold answers: absl::Status and absl::StatusOr, under our own names.
//
// Codes: InvalidArgument and FailedPrecondition are the caller's mistake, and nothing has changed.
// NotFound names a name or folder that is not there, PermissionDenied a folder that takes no file.
// ResourceExhausted names what was asked, what is there, and the setting that mends it. Unavailable
// names what this system refuses, or the transfer that a disk did not end, DataLoss the record that
// a disk has lost. Aborted and DeadlineExceeded name the rank that failed or did not come;
// Cancelled names a rank that has given up. Unimplemented names the feature that this version has
// not got, Internal what the system failed at. A verdict that a collective call agrees on is the
// same on every rank; after a lost peer or calls in another order every rank fails, each with what
// it saw of it.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace zerohold {

using Status = absl::Status;
template <typename T>
using StatusOr = absl::StatusOr<T>;

}  // namespace zerohold
