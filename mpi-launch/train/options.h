// What zh-train can be told: flags, their defaults and their check. Knows neither torch nor the
// engine.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "zerohold/options.h"
#include "zerohold/status.h"
#include "zerohold/tensor.h"

namespace zerohold::train {

// Words of flags, in the order of the enums that they stand for.
inline constexpr std::array kDTypes = {"fp32", "bf16", "fp16"};
inline constexpr std::array kComputeTypes = {"auto", "fp32"};
inline constexpr std::array kRules = {"adamw", "adam", "sgd", "lion", "adagrad"};
inline constexpr std::array kMasters = {"fp32", "remainder"};
inline constexpr std::array kInstructionSets = {"best", "baseline", "v3", "v4"};
inline constexpr std::array kTiers = {"none", "host", "nvme"};
inline constexpr std::array kFrameTiers = {"host", "nvme"};
inline constexpr std::array kIoEngines = {"best", "uring", "threads"};

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
  int64_t evaluate_every = 0;
  std::string rule = "adamw";
  double learning_rate = 1e-3;
  double weight_decay = 0.1;
  double beta1 = GroupOptions{}.beta1;
  double beta2 = GroupOptions{}.beta2;
  double epsilon = GroupOptions{}.epsilon;
  double momentum = GroupOptions{}.momentum;
  bool nesterov = false;
  double clip = 1.0;
  std::string dtype = "fp32";
  std::string compute_dtype = "auto";
  std::string master = "fp32";
  std::string loss_scale = "auto";  // or "dynamic", "off", a number
  double loss_scale_initial = LossScaleOptions{}.initial;
  int64_t loss_scale_interval = LossScaleOptions{}.growth_interval;
  int64_t seed = 1;
  bool recompute = false;
  int compute_threads = 1;
  std::string optimizer = "zerohold";
  int zero_stage = 1;
  bool reproducible = false;
  int64_t max_live_parameters_bytes = 0;
  int64_t max_live_gradients_bytes = 0;
  std::string device_budget = "100%";
  int64_t persistence_threshold_elems = 0;
  int64_t bucket_elems = EngineOptions{}.bucket_elems;
  int update_threads = 0;
  std::string instruction_set = "best";
  bool overlap_next_forward = false;
  std::string offload = "none";
  std::string params_offload = "host";
  std::string gradients_offload = "host";
  std::vector<std::string> nvme_paths;
  std::string host_budget = "0";
  int64_t window = 0;
  std::string io_engine = "best";
  bool require_pinned = false;
  std::string offload_faults;
  double communication_timeout_s = EngineOptions{}.communication_timeout_s;
  std::string log;
  std::string trace;

  // Every flag that must be the same on all ranks, one "name=value" a line; `data` is not among
  // them, its contents are compared instead, nor is how each rank uses its disks.
  std::string agreed_text;

  ScheduleOptions Schedule() const;
  DType WeightType() const;
  // Hyper-parameters of the matrices, which decay, and of all else.
  GroupOptions Group(bool decays) const;
  LossScaleOptions LossScale() const;
  bool UsesDisk() const {
    return offload == "nvme" || params_offload == "nvme" || gradients_offload == "nvme";
  }
  OffloadOptions Offload() const;
  // What the engine of rank `rank` is told; its groups are Group(true) and Group(false).
  EngineOptions Engine(int rank) const;
  // FILE.json for rank 0, FILE.r.json for rank r; "" for no trace.
  std::string TracePath(int rank) const;
};

// Reads and checks the flags. Errors: InvalidArgument or Unimplemented, one line naming the flag
// and the mend; Cancelled carrying the help text when --help is among them.
StatusOr<Options> ParseOptions(int argc, const char* const* argv);

// FailedPrecondition naming the first "name=value" line of `mine` that is another one in `first`'s.
Status CompareLines(const std::string& mine, const std::string& first);

}  // namespace zerohold::train
