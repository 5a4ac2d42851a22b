// How every bench speaks: one line a case, beside the ceiling of the same process and run or a
// limit that is promised; a table for people, a JSON object a line with --json.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace zerohold::bench {

inline double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

// Costs, not rates: less is better. The ratio is bound / value: 1 is the ceiling, which is the
// least possible; of a limit, less than 1 breaks it.
struct Line {
  std::string name;
  double value;
  double bound;
};
enum class Bound { kCeiling, kLimit };

class Report {
 public:
  Report(std::string bench, std::string unit, bool json, Bound bound = Bound::kCeiling)
      : bench_(std::move(bench)),
        unit_(std::move(unit)),
        json_(json),
        bound_(bound == Bound::kCeiling ? "ceiling" : "limit") {
    if (!json_)
      std::printf("%-48s %12s %12s %8s\n", bench_.c_str(), unit_.c_str(), bound_, "ratio");
  }
  void Add(const Line& line) const {
    const double ratio = line.bound / line.value;
    if (json_) {
      std::printf(
          "{\"bench\":\"%s\",\"case\":\"%s\",\"value\":%.4g,\"unit\":\"%s\",\"%s\":%.4g,"
          "\"ratio\":%.3f}\n",
          bench_.c_str(), line.name.c_str(), line.value, unit_.c_str(), bound_, line.bound, ratio);
    } else {
      std::printf("%-48s %12.4g %12.4g %8.3f\n", line.name.c_str(), line.value, line.bound, ratio);
    }
    std::fflush(stdout);
  }

 private:
  std::string bench_;
  std::string unit_;
  bool json_;
  const char* bound_;
};

}  // namespace zerohold::bench
