// Memory that can be had: the node's and that of each control group above this process, read from
// trees of files as kernels and containers show them.
#include "src/memory/available.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace zerohold::memory {
namespace {

namespace fs = std::filesystem;
using Files = std::map<std::string, std::string>;

constexpr int64_t kNode = int64_t{9000} * 1024;
constexpr char kMemInfo[] = "MemTotal: 99999 kB\nMemAvailable: 8000 kB\nSwapFree: 1000 kB\n";
constexpr char kMountV2[] = "31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n";

// Of a node with these files.
int64_t Available(Files files) {
  files.emplace("/proc/meminfo", kMemInfo);
  const std::string root = fs::temp_directory_path() / ("zh-groups-" + std::to_string(getpid()));
  for (const auto& [path, text] : files) {
    fs::create_directories(fs::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  }
  const int64_t bytes = AvailableMemoryBytes(root);
  fs::remove_all(root);
  return bytes;
}

Files Group(const std::string& path, const std::string& max, const std::string& current) {
  return {{path + "/memory.max", max + "\n"},
          {path + "/memory.current", current + "\n"},
          {path + "/memory.stat", "anon 7\nfile 900\ninactive_file 500\nactive_file 400\n"}};
}

Files V2(const std::string& group, std::initializer_list<Files> groups) {
  Files files = {{"/proc/self/cgroup", "0::" + group + "\n"}, {"/proc/self/mountinfo", kMountV2}};
  for (Files each : groups) files.merge(each);
  return files;
}

TEST(Available, WithoutGroupsIsTheNodes) {
  EXPECT_EQ(Available({}), kNode);
  EXPECT_EQ(Available(V2("/", {})), kNode);
  EXPECT_EQ(Available({{"/proc/meminfo", ""}}), INT64_MAX);
  EXPECT_EQ(Available({{"/proc/self/cgroup", "nonsense"}, {"/proc/self/mountinfo", "-\n\n1 2"}}),
            kNode);
}

TEST(Available, IsWhatTheGroupsLimitLeavesWithItsCachedFiles) {
  const std::string job = "/sys/fs/cgroup/job";
  EXPECT_EQ(Available(V2("/job", {Group(job, "100000", "40000")})), 100000 - 40000 + 900);
  EXPECT_EQ(Available(V2("/job", {Group(job, "max", "40000")})), kNode);
  EXPECT_EQ(Available(V2("/job", {Group(job, "99999999999", "40000")})), kNode);
  // No more than the group uses is cached by it; nothing is left of a limit that was lowered.
  EXPECT_EQ(Available(V2("/job", {Group(job, "100000", "300")})), 100000);
  EXPECT_EQ(Available(V2("/job", {Group(job, "100000", "200000")})), 0);
  EXPECT_EQ(Available(V2("/job", {{{job + "/memory.max", "100000"}}})), kNode);
}

TEST(Available, IsTheLeastOfAllGroupsAbove) {
  const std::string top = "/sys/fs/cgroup";
  const auto least = [&](const char* slice, const char* job, const char* step) {
    return Available(V2("/slice/job/step", {Group(top + "/slice", slice, "10000"),
                                            Group(top + "/slice/job", job, "6000"),
                                            Group(top + "/slice/job/step", step, "5000")}));
  };
  EXPECT_EQ(least("50000", "max", "90000"), 50000 - 10000 + 900);
  EXPECT_EQ(least("50000", "40000", "max"), 40000 - 6000 + 900);
  EXPECT_EQ(least("max", "40000", "30000"), 30000 - 5000 + 900);
  // A container's root is its own group, with a limit of its own.
  EXPECT_EQ(Available(V2("/", {Group(top, "50000", "20000")})), 50000 - 20000 + 900);
}

// Without a namespace of its own a container sees its group mounted, under the node's path.
TEST(Available, FindsAGroupThatIsMountedItself) {
  Files files = Group("/sys/fs/cgroup", "70000", "20000");
  files["/proc/self/cgroup"] = "0::/docker/a1\n";
  files["/proc/self/mountinfo"] =
      "30 23 0:26 / /sys rw - sysfs sysfs rw\n"
      "31 30 0:27 /docker/a1 /sys/fs/cgroup ro - cgroup2 cgroup2 rw\n";
  EXPECT_EQ(Available(files), 70000 - 20000 + 900);
}

TEST(Available, ReadsVersionOneBesideTwo) {
  const std::string job = "/sys/fs/cgroup/memory/job";
  Files files = {
      {"/proc/self/cgroup", "9:name=systemd:/\n4:hugetlb,memory:/job\n2:cpu,cpuacct:/x\n0::/\n"},
      {"/proc/self/mountinfo",
       "40 30 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
       "41 30 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,hugetlb,memory\n"
       "42 30 0:33 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"},
      {job + "/memory.limit_in_bytes", "80000\n"},
      {job + "/memory.usage_in_bytes", "30000\n"},
      {job + "/memory.stat", "inactive_file 1\ntotal_inactive_file 700\ntotal_active_file 50\n"},
      {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"},
      {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "30000\n"}};
  EXPECT_EQ(Available(files), 80000 - 30000 + 750);
}

TEST(Available, OfThisProcessIsSomething) {
  EXPECT_GT(AvailableMemoryBytes(), 0);
  EXPECT_LT(AvailableMemoryBytes(), INT64_MAX);
}

}  // namespace
}  // namespace zerohold::memory
