// /proc/self/cgroup tells the group of each hierarchy, /proc/self/mountinfo where it is mounted.
#include "src/memory/available.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

namespace zerohold::memory {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Files of a group, version 2 or 1.
struct Hierarchy {
  const char* file_system;
  const char* controllers;  // in /proc/self/cgroup
  const char* limit;
  const char* used;
  const char* cached[2];  // files, in lines of memory.stat with the groups below
};
constexpr Hierarchy kHierarchies[] = {
    {"cgroup2", "", "memory.max", "memory.current", {"inactive_file", "active_file"}},
    {"cgroup",
     "memory",
     "memory.limit_in_bytes",
     "memory.usage_in_bytes",
     {"total_inactive_file", "total_active_file"}}};

// The lines of the kernel's files "name value": that of `name`.
std::optional<int64_t> ValueOf(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  std::string field;
  for (int64_t value = 0; file >> field >> value;) {
    if (field == name) return value;
    file.ignore(kUnlimited, '\n');
  }
  return std::nullopt;
}

// A file that is one number, or a word such as "max".
std::optional<int64_t> NumberIn(const std::string& path) {
  int64_t number = 0;
  return std::ifstream(path) >> number ? std::optional(number) : std::nullopt;
}

bool Lists(const std::string& names, std::string_view name) {
  std::istringstream all(names);
  for (std::string each; std::getline(all, each, ',');) {
    if (each == name) return true;
  }
  return names.empty() && name.empty();
}

// The path of this process's group within its hierarchy.
std::optional<std::string> GroupPath(const std::string& root, const Hierarchy& hierarchy) {
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string number, controllers, path;
  while (std::getline(groups, number, ':') && std::getline(groups, controllers, ':') &&
         std::getline(groups, path)) {
    if (Lists(controllers, hierarchy.controllers)) return path;
  }
  return std::nullopt;
}

struct Mount {
  std::string origin;  // the group that is seen at `point`
  std::string point;
};

std::optional<Mount> FindMount(const std::string& root, const Hierarchy& hierarchy) {
  std::ifstream mounts(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string skipped, file_system, options;
    Mount mount;
    words >> skipped >> skipped >> skipped >> mount.origin >> mount.point;
    while (words >> skipped && skipped != "-") continue;
    words >> file_system >> skipped >> options;
    const bool fits = *hierarchy.controllers == 0 || Lists(options, hierarchy.controllers);
    if (file_system == hierarchy.file_system && fits) return mount;
  }
  return std::nullopt;
}

// What the groups of one hierarchy leave, from this process's up to the highest that is seen.
int64_t LeftByGroups(const std::string& root, const Hierarchy& hierarchy) {
  const std::optional<std::string> group = GroupPath(root, hierarchy);
  const std::optional<Mount> mount = FindMount(root, hierarchy);
  if (!group || !mount) return kUnlimited;
  // A container may see its own group as the root, while its path is told from the node's.
  std::string below = *group;
  if (mount->origin != "/" && below.starts_with(mount->origin))
    below.erase(0, mount->origin.size());
  const std::string top = root + mount->point;
  int64_t left = kUnlimited;
  for (std::string folder = top + below; folder.size() >= top.size();
       folder.erase(folder.find_last_of('/'))) {
    const std::optional<int64_t> limit = NumberIn(folder + "/" + hierarchy.limit);
    const std::optional<int64_t> used = NumberIn(folder + "/" + hierarchy.used);
    if (!limit || !used) continue;
    int64_t cached = 0;
    for (const char* line : hierarchy.cached) {
      cached += ValueOf(folder + "/memory.stat", line).value_or(0);
    }
    left = std::min(left, std::max<int64_t>(0, *limit - *used + std::min(cached, *used)));
  }
  return left;
}

}  // namespace

int64_t AvailableMemoryBytes(const std::string& root) {
  int64_t available = kUnlimited;
  const std::string node = root + "/proc/meminfo";
  if (const std::optional<int64_t> kib = ValueOf(node, "MemAvailable:")) {
    available = (*kib + ValueOf(node, "SwapFree:").value_or(0)) * 1024;
  }
  for (const Hierarchy& hierarchy : kHierarchies) {
    available = std::min(available, LeftByGroups(root, hierarchy));
  }
  return available;
}

}  // namespace zerohold::memory
