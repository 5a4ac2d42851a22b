// libnuma tells what there is; mbind does it.
#include "offload/staging/numa.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <numa.h>
#include <numaif.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>

namespace zerohold::staging {
namespace {

struct FreeMask {
  void operator()(bitmask* mask) const { numa_free_nodemask(mask); }
};
using Mask = std::unique_ptr<bitmask, FreeMask>;

std::vector<int> ReadNodesOfCores() {
  std::vector<int> nodes;
  for (int core = 0; core < numa_num_possible_cpus(); ++core) {
    nodes.push_back(numa_node_of_cpu(core));
  }
  return nodes;
}

// Of the cores that this process may run on.
std::set<int> NearNodes() {
  // Asked once, by one thread: libnuma keeps what it has read, and takes no lock.
  static const std::vector<int> nodes = ReadNodesOfCores();
  std::set<int> near;
  bitmask* const cores = numa_allocate_cpumask();
  if (numa_sched_getaffinity(0, cores) >= 0) {
    for (size_t core = 0; core < nodes.size(); ++core) {
      if (numa_bitmask_isbitset(cores, static_cast<unsigned>(core))) near.insert(nodes[core]);
    }
  }
  numa_free_cpumask(cores);
  return near;
}

}  // namespace

NumaPolicy ChooseNodes(std::span<const NumaNode> nodes, int64_t bytes) {
  NumaPolicy policy;
  if (nodes.size() <= 1) return policy;
  std::vector<NumaNode> near;
  std::ranges::copy_if(nodes, std::back_inserter(near), &NumaNode::near);
  // The fullest goes, until each of those left holds its part.
  std::ranges::sort(near, std::greater<>{}, &NumaNode::free_bytes);
  while (!near.empty() && near.back().free_bytes * std::ssize(near) < bytes) near.pop_back();
  for (const NumaNode& node : near.empty() ? nodes : std::span<const NumaNode>(near)) {
    policy.nodes.push_back(node.number);
  }
  std::ranges::sort(policy.nodes);
  return policy;
}

std::vector<NumaNode> NodesOfThisProcess() {
  std::vector<NumaNode> nodes;
  if (numa_available() < 0) return nodes;
  const std::set<int> near = NearNodes();
  const Mask allowed(numa_get_mems_allowed());
  for (int node = 0; node <= numa_max_node(); ++node) {
    long long free_bytes = 0;
    if (!numa_bitmask_isbitset(allowed.get(), static_cast<unsigned>(node))) continue;
    if (numa_node_size64(node, &free_bytes) <= 0) continue;  // cores alone
    nodes.push_back({node, free_bytes, near.contains(node)});
  }
  return nodes;
}

absl::Status PlaceOnNodes(std::span<std::byte> memory, const NumaPolicy& policy) {
  if (memory.empty() || policy.nodes.empty()) return absl::OkStatus();
  const Mask mask(numa_allocate_nodemask());
  for (const int node : policy.nodes) numa_bitmask_setbit(mask.get(), static_cast<unsigned>(node));
  // One node is preferred and not bound to: when it is full others help out.
  const int mode = policy.nodes.size() == 1 ? MPOL_PREFERRED : MPOL_INTERLEAVE;
  if (mbind(memory.data(), memory.size(), mode, mask->maskp, mask->size + 1, MPOL_MF_MOVE) == 0) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat(
      "placing ", memory.size(), " bytes of staging memory on NUMA node ",
      absl::StrJoin(policy.nodes, ", "), " was refused (", std::strerror(errno),
      "): it lies where the kernel has put it, and transfers and updates may be slower"));
}

absl::Status PlaceNear(std::span<std::byte> memory) {
  if (memory.empty()) return absl::OkStatus();
  return PlaceOnNodes(memory,
                      ChooseNodes(NodesOfThisProcess(), static_cast<int64_t>(memory.size())));
}

}  // namespace zerohold::staging
