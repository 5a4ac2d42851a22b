// Which memory of the machine staging lies in: that of the rank's own cores, so that neither
// updates nor the disk's transfers cross between sockets.
#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace zerohold::staging {

// A part of the machine with memory of its own.
struct NumaNode {
  int number = 0;
  int64_t free_bytes = 0;
  bool near = false;  // the rank may run on one of its cores
};

// Where pages go: to `nodes`, by turns when there are several; wherever the kernel likes, when
// there are none. What turns out to be full sends pages elsewhere; no policy kills.
struct NumaPolicy {
  std::vector<int> nodes;  // ascending
  bool operator==(const NumaPolicy&) const = default;
};

// Pure. The near nodes where they have the room together, those in which each one's part fits; else
// all nodes by turns. A machine of one node needs no policy.
NumaPolicy ChooseNodes(std::span<const NumaNode> nodes, int64_t bytes);

// The nodes that this process may have memory from; none where the kernel does not tell.
std::vector<NumaNode> NodesOfThisProcess();

// Both, for all of `memory`, which this thread's process owns.
absl::Status PlaceNear(std::span<std::byte> memory);

// Moves the pages, which may be there already, and those to come. Errors: Unavailable with the
// errno, when the kernel or a container's rules refuse; the memory can be used all the same.
absl::Status PlaceOnNodes(std::span<std::byte> memory, const NumaPolicy& policy);

}  // namespace zerohold::staging
