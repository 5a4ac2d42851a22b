// How much of all records each folder gets: in proportion to what its disk moves in a second, there
// and back, for a step reads each record once and writes it once.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace zerohold::tiers {

// What is asked of disks; tests answer in their place.
struct DiskProbe {
  std::function<uint64_t(const std::string& folder)> device;
  std::function<absl::StatusOr<double>(const std::string& folder)> rate;
};

// The file system's number, and a measurement of at most 0.2 s (io/disk_rate.h) on a file of at
// most `bytes`, which is gone when it is over.
DiskProbe RealDisks(int64_t bytes, double timeout_s);

// Positive numbers, one for each folder. Folders of one device share its rate, which is measured
// once; where there is but one device nothing is measured, for all folders get the same. Errors:
// RecordFile::Create's and MeasureRate's.
absl::StatusOr<std::vector<double>> SharesOf(const std::vector<std::string>& folders,
                                             const DiskProbe& probe);

}  // namespace zerohold::tiers
