// What the arena and the frame pool share: ranges of addresses that hold no memory and stay taken.
//
// A range is never left open, not for a moment: an unmapped hole could be given to another thread's
// mmap, and what is attached there next would destroy it. So ranges are covered, not unmapped.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>

namespace zerohold::memory {

// A refusal, with errno's text and what the node has left.
absl::Status Exhausted(const char* what, int64_t bytes, const char* mend);

// Addresses alone, from a multiple of a frame on, rounded up to frames; a touch faults; children do
// not inherit them. Errors: ResourceExhausted.
absl::StatusOr<char*> ReserveAddresses(int64_t bytes);
// Gives them back, with whatever is mapped in them.
void ReturnAddresses(char* begin, int64_t bytes);

// Takes away in place what is mapped at [at, +bytes): a touch faults, the addresses stay taken.
// False with errno where the kernel refuses; what was there is then still there.
bool CoverAddresses(char* at, int64_t bytes);

// Maps [offset, +bytes) of a shared file at `at`, over what is there; present, not inherited.
// False with errno where the kernel refuses; `at` then faults as before.
bool MapShared(char* at, int64_t bytes, int descriptor, int64_t offset);

}  // namespace zerohold::memory
