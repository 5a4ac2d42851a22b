#include "offload/tiers/striping.h"

#include <sys/stat.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "offload/io/backends.h"
#include "offload/io/disk_rate.h"
#include "offload/io/record_file.h"
#include "src/base/align.h"
#include "src/base/status_macros.h"

namespace zerohold::tiers {
namespace {

constexpr int kThreads = 4;
constexpr int64_t kFewestBytes = 4 * base::kPageBytes;

}  // namespace

DiskProbe RealDisks(int64_t bytes, double timeout_s) {
  const auto device = [](const std::string& folder) -> uint64_t {
    struct stat entry = {};
    return stat(folder.c_str(), &entry) == 0 ? entry.st_dev : 0;  // what is wrong Create will say
  };
  io::RateProbe probe = {.timeout_s = timeout_s};
  probe.bytes = std::clamp(base::AlignUp(bytes, base::kPageBytes), kFewestBytes, probe.bytes);
  const auto rate = [probe](const std::string& folder) -> absl::StatusOr<double> {
    ZH_ASSIGN_OR_RETURN(
        io::RecordFile file,
        io::RecordFile::Create(folder, probe.bytes, [](const std::string&) {}));  // told later
    return io::MeasureRate(io::CreateThreadBackend(kThreads),
                           std::make_shared<const io::RecordFile>(std::move(file)), probe);
  };
  return {device, rate};
}

absl::StatusOr<std::vector<double>> SharesOf(const std::vector<std::string>& folders,
                                             const DiskProbe& probe) {
  std::vector<uint64_t> devices;
  for (const std::string& folder : folders) devices.push_back(probe.device(folder));
  std::vector<double> shares(folders.size(), 1.0);
  if (std::ranges::count(devices, devices[0]) == std::ssize(devices)) return shares;
  for (size_t i = 0; i < folders.size(); ++i) {
    const auto first = std::ranges::find(devices, devices[i]) - devices.begin();
    if (first < static_cast<std::ptrdiff_t>(i)) {
      shares[i] = shares[first];
      continue;
    }
    ZH_ASSIGN_OR_RETURN(const double rate, probe.rate(folders[i]));
    shares[i] = rate / static_cast<double>(std::ranges::count(devices, devices[i]));
  }
  return shares;
}

}  // namespace zerohold::tiers
