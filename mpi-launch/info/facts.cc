#include "mpi-launch/info/facts.h"

#include <linux/capability.h>
#include <linux/io_uring.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace zerohold::info {
namespace {

std::string FirstLine(const std::string& path) {
  std::string line;
  std::ifstream in(path);
  std::getline(in, line);
  return line;
}

// The value of a "name : value" line.
std::string Field(const std::string& path, const std::string& name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos || line.compare(0, name.size(), name) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

double MemInfoBytes(const std::string& name) {
  const std::string kib = Field("/proc/meminfo", name);
  return kib.empty() ? 0 : std::stod(kib) * 1024;
}

bool MayLockAnyAmount() {
  const std::string effective = Field("/proc/self/status", "CapEff");
  return !effective.empty() && (std::stoull(effective, nullptr, 16) >> CAP_IPC_LOCK & 1) != 0;
}

// Cores' worth of time that the control group allows; 0 for no limit.
double CpuQuota() {
  std::istringstream unified(FirstLine("/sys/fs/cgroup/cpu.max"));
  std::string quota;
  double period_us = 0;
  if (unified >> quota >> period_us) return quota == "max" ? 0 : std::stod(quota) / period_us;
  const std::string v1 = FirstLine("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
  const std::string v1_period = FirstLine("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (v1.empty() || v1_period.empty() || std::stod(v1) < 0) return 0;
  return std::stod(v1) / std::stod(v1_period);
}

}  // namespace

std::string Bytes(double bytes) {
  const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  for (; bytes >= 1024 && unit < 4; ++unit) bytes /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
  return text;
}

Fact Processor() { return {"processor", Field("/proc/cpuinfo", "model name"), ""}; }

Fact Cores(int local_ranks) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  sched_getaffinity(0, sizeof(mask), &mask);
  const int allowed = CPU_COUNT(&mask);
  const auto online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  const double quota = CpuQuota();
  Fact fact{"cores", std::to_string(online) + " online, " + std::to_string(allowed) + " for us",
            ""};
  if (quota > 0) {
    char text[48];
    std::snprintf(text, sizeof(text), ", quota of %.1f", quota);
    fact.value += text;
  }
  if (local_ranks > online) {
    fact.hint =
        "more ranks here than cores: mpirun --oversubscribe --bind-to none "
        "--mca mpi_yield_when_idle 1";
  } else if (allowed * local_ranks < online) {
    fact.hint = "this rank is bound to fewer cores than its share: mpirun --bind-to none";
  } else if (quota > 0 && quota < local_ranks) {
    fact.hint = "the control group gives less than a core a rank: raise its cpu quota";
  }
  return fact;
}

Fact NumaNodes() {
  int nodes = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/sys/devices/system/node", error)) {
    const std::string name = entry.path().filename();
    if (name.size() > 4 && name.starts_with("node") && name[4] >= '0' && name[4] <= '9') ++nodes;
  }
  Fact fact{"NUMA nodes", nodes == 0 ? "unknown" : std::to_string(nodes), ""};
  if (nodes > 1)
    fact.hint = "keep a rank's threads near its memory: mpirun --map-by numa --bind-to numa";
  return fact;
}

Fact Memory() {
  const double swap = MemInfoBytes("SwapTotal");
  return {"memory",
          Bytes(MemInfoBytes("MemTotal")) + ", " + Bytes(MemInfoBytes("MemAvailable")) +
              " available, " + (swap > 0 ? Bytes(swap) : "no") + " swap",
          ""};
}

Fact LockedMemory() {
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  const bool unlimited = limit.rlim_cur == RLIM_INFINITY;
  Fact fact{"locked memory",
            unlimited ? "unlimited" : "limit " + Bytes(static_cast<double>(limit.rlim_cur)), ""};
  if (unlimited) return fact;
  if (MayLockAnyAmount()) {
    fact.value += ", which CAP_IPC_LOCK lifts for us";
  } else {
    fact.hint =
        "buffers cannot be pinned: ulimit -l unlimited (memlock in /etc/security/limits.conf)";
  }
  return fact;
}

Fact SharedMemory() {
  constexpr char kMount[] = "/dev/shm";
  struct statvfs fs {};
  if (statvfs(kMount, &fs) != 0) {
    return {"shared memory", std::string(kMount) + ": " + std::strerror(errno),
            "ranks cannot share memory: mount -t tmpfs tmpfs /dev/shm"};
  }
  const double size = static_cast<double>(fs.f_blocks) * static_cast<double>(fs.f_frsize);
  const double free = static_cast<double>(fs.f_bavail) * static_cast<double>(fs.f_frsize);
  Fact fact{"shared memory",
            std::string(kMount) + ": " + Bytes(size) + ", " + Bytes(free) + " free", ""};
  if (free < MemInfoBytes("MemTotal") / 8) {
    fact.hint = "models may not fit: mount -o remount,size=50% /dev/shm (a container: --shm-size)";
  }
  return fact;
}

Fact HugePages() {
  const std::string enabled = FirstLine("/sys/kernel/mm/transparent_hugepage/enabled");
  const size_t begin = enabled.find('[') + 1;
  Fact fact{"huge pages", "none", ""};
  if (begin != 0) fact.value = enabled.substr(begin, enabled.find(']') - begin);
  if (fact.value == "none" || fact.value == "never") {
    fact.hint =
        "large buffers use small pages: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
  }
  return fact;
}

Fact IoUring() {
  io_uring_params params{};
  const long ring = syscall(__NR_io_uring_setup, 4, &params);
  if (ring >= 0) {
    close(static_cast<int>(ring));
    return {"io_uring", "yes", ""};
  }
  const int error = errno;
  return {"io_uring", std::string("no: ") + std::strerror(error),
          error == ENOSYS
              ? "disks are reached through threads: a kernel of 5.6 or newer has io_uring"
              : "disks are reached through threads: sysctl kernel.io_uring_disabled=0 (a "
                "container: its seccomp profile)"};
}

}  // namespace zerohold::info
