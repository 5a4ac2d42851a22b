// What zh-train can be told: flags, their defaults and their check. Knows neither torch nor the
// engine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerohold/options.h"
#include "zerohold/status.h"

namespace zerohold::train {

// One member for each flag; options.cc says what each means.
struct Options {
  std::vector<std::string> data = {"/usr/share/common-licenses"};
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t width = 128;
  int64_t context = 128;
  int64_t micro_batch = 8;
  int64_t accumulate = 1;
  int64_t steps = 400;
  int64_t total_steps = 0;  // of the schedule; 0: as `steps`
  int64_t warmup = -1;      // -1: a tenth of the schedule, at most 100
  double learning_rate = 1e-3;
  double weight_decay = 0.1;
  double clip = 1.0;
  std::string dtype = "fp32";
  uint64_t seed = 1;
  bool recompute = false;
  int compute_threads = 1;
  std::string optimizer = "zerohold";
  int zero_stage = 1;
  int64_t bucket_elems = EngineOptions{}.bucket_elems;
  int update_threads = 0;
  std::string instruction_set = "best";
  std::string log;
  std::string trace;

  // Every flag that must be the same on all ranks, one "name=value" a line; `data` is not among
  // them, its contents are compared instead.
  std::string agreed_text;

  ScheduleOptions Schedule() const;
  // FILE.json for rank 0, FILE.r.json for rank r; "" for no trace.
  std::string TracePath(int rank) const;
};

// Reads and checks the flags. Errors: InvalidArgument or Unimplemented, one line naming the flag
// and the mend; Cancelled carrying the help text when --help is among them.
StatusOr<Options> ParseOptions(int argc, const char* const* argv);

// FailedPrecondition naming the first "name=value" line of `mine` that is another one in `first`'s.
Status CompareLines(const std::string& mine, const std::string& first);

}  // namespace zerohold::train
