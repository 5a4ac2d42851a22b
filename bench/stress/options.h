// What zh-stress can be told: flags, their defaults and their check.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerohold/options.h"
#include "zerohold/status.h"
#include "zerohold/tensor.h"

namespace zerohold::bench {

// One member for each flag; options.cc says what each means.
struct StressOptions {
  int64_t params = 200'000'000;
  std::string tier = "nvme";
  std::string gradients = "host";
  std::string parameters = "host";
  std::vector<std::string> nvme_paths;
  int64_t steps = 7;
  double seconds = 0.0;  // > 0: steps until then, however many
  int window = 0;
  int64_t bucket_elems = EngineOptions{}.bucket_elems;
  int64_t record_elems = EngineOptions{}.record_elems;
  std::string dtype = "bf16";
  std::string master = "fp32";
  std::string rule = "adamw";
  int zero_stage = -1;  // the lowest that has in frames what is not to stay in memory
  std::string faults;
  double read_rate = 0.0;  // of --throttle, bytes a second; 0: the disk's own
  double write_rate = 0.0;
  double update_rate = 0.0;
  double latency_s = 0.0;  // of each transfer
  double link_rate = 0.0;  // of what a rank sends
  double link_latency_s = 0.0;
  bool overlap_next_forward = false;
  double forward_s = 0.0;
  double communication_timeout_s = EngineOptions{}.communication_timeout_s;
  bool verify = false;
  bool json = false;
  std::string trace;
  int64_t seed = 1;

  // Every flag that must be the same on all ranks, one "name=value" a line.
  std::string agreed_text;

  bool on_disk() const { return tier == "nvme" || gradients == "nvme" || parameters == "nvme"; }
  int ZeroStage() const;
  DType WeightType() const;
  UpdateRule Rule() const;
  // Nothing is clipped, and gradients are summed: so each unit can be recomputed by itself.
  EngineOptions Engine(int rank) const;
};

// Reads and checks the flags. Errors: InvalidArgument or Unimplemented, one line naming the flag
// and the mend; Cancelled carrying the help text when --help is among them.
StatusOr<StressOptions> ParseStressOptions(int argc, const char* const* argv);

}  // namespace zerohold::bench
