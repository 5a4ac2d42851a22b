#include "mpi-launch/train/option_checks.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <string>

namespace zerohold::train {
namespace {

Status Bad(const std::string& text) { return absl::InvalidArgumentError(text); }

// A flag's number and its range.
struct Count {
  const char* flag;
  int64_t value;
  int64_t least;
  int64_t most = 1'000'000'000'000'000'000;
};

// CLI11 makes the largest number there is of all that are larger.
Status CheckCount(const Count& count) {
  const std::string flag = count.flag;
  if (count.value < count.least) {
    return Bad(flag + " is " + std::to_string(count.value) + ": give " +
               std::to_string(count.least) + " or more");
  }
  if (count.value <= count.most) return absl::OkStatus();
  if (count.most == Count{}.most) return Bad(flag + " is more than 10^18: give less");
  return Bad(flag + " is " + std::to_string(count.value) + ": give " + std::to_string(count.most) +
             " or less");
}

// As people write it.
std::string Shortest(double value) {
  char text[64];
  return std::string(text, std::to_chars(text, std::end(text), value).ptr);
}

Status CheckNotNegative(const char* flag, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return Bad(std::string(flag) + " is " + Shortest(value) + ": give 0 or more, finite");
}

// "fp32, bf16 or fp16".
template <typename Words>
std::string Listed(const Words& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 < words.size() ? ", " : " or ";
    text += words[i];
  }
  return text;
}

template <typename Words>
Status CheckWord(const char* flag, const std::string& value, const Words& words) {
  if (std::find(words.begin(), words.end(), value) != words.end()) return absl::OkStatus();
  return Bad(std::string(flag) + " " + value + " is unknown: give " + Listed(words));
}

Status CheckWords(const Options& o) {
  Status status = CheckWord("--dtype", o.dtype, kDTypes);
  status.Update(CheckWord("--compute-dtype", o.compute_dtype, kComputeTypes));
  status.Update(CheckWord("--optimizer-rule", o.rule, kRules));
  status.Update(CheckWord("--master", o.master, kMasters));
  status.Update(CheckWord("--optimizer", o.optimizer, std::array{"zerohold", "torch"}));
  status.Update(CheckWord("--instruction-set", o.instruction_set, kInstructionSets));
  status.Update(CheckWord("--offload", o.offload, kTiers));
  status.Update(CheckWord("--params-offload", o.params_offload, kFrameTiers));
  status.Update(CheckWord("--gradients-offload", o.gradients_offload, kFrameTiers));
  status.Update(CheckWord("--io-engine", o.io_engine, kIoEngines));
  return status;
}

// What a model, a sample or a step is multiplied from has the limits of a machine, not of a number:
// whatever is larger would take memory and never begin. Attention holds the square of the context.
Status CheckCounts(const Options& o) {
  const Count counts[] = {
      {"--layers", o.layers, 1, 10'000},
      {"--heads", o.heads, 1, 1024},
      {"--width", o.width, 1, 65'536},
      {"--context", o.context, 1, 16'384},
      {"--micro-batch", o.micro_batch, 1, 65'536},
      {"--accumulate", o.accumulate, 1, 65'536},
      {"--steps", o.steps, 1},
      {"--total-steps", o.total_steps, 0},
      {"--warmup", o.warmup, -1},
      {"--evaluate-every", o.evaluate_every, 0},
      {"--loss-scale-interval", o.loss_scale_interval, 1},
      {"--compute-threads", o.compute_threads, 1, 1024},
      {"--update-threads", o.update_threads, 0, 1024},
      {"--bucket-elems", o.bucket_elems, 1},
      {"--zero-stage", o.zero_stage, 0, 3},
      {"--persistence-threshold", o.persistence_threshold_elems, 0},
      {"--window", o.window, 0, 4096},
      {"--seed", o.seed, 0},
  };
  for (const Count& count : counts) {
    if (Status s = CheckCount(count); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// The least that the backward pass keeps: 2 bytes for each pair of bytes of a sample, in each head
// and block (in one block, where each is computed again). Torch would take it until it is killed.
Status CheckAttention(const Options& o) {
  const auto context = static_cast<double>(o.context);
  const double kept_bytes = 2 * context * context * static_cast<double>(o.micro_batch * o.heads) *
                            static_cast<double>(o.recompute ? 1 : o.layers);
  const double node_bytes =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  if (kept_bytes <= node_bytes) return absl::OkStatus();
  return Bad("--context " + std::to_string(o.context) + " needs at least " +
             std::to_string(static_cast<int64_t>(kept_bytes / (1 << 20))) +
             " MiB for attention, and this node has " +
             std::to_string(static_cast<int64_t>(node_bytes / (1 << 20))) +
             ": give less, or less --micro-batch" + (o.recompute ? "" : ", or --recompute"));
}

Status CheckLossScale(const Options& o) {
  const LossScaleOptions scale = o.LossScale(), defaults;
  const bool tuned =
      o.loss_scale_initial != defaults.initial || o.loss_scale_interval != defaults.growth_interval;
  const bool moves = scale.enabled && scale.dynamic;
  if (tuned && !moves) {
    return Bad(
        "--loss-scale-initial and --loss-scale-interval are of a scale that changes: give "
        "--loss-scale dynamic");
  }
  const double least = moves ? scale.floor : std::numeric_limits<float>::min();
  const double most = moves ? scale.cap : std::numeric_limits<float>::max();
  if (!scale.enabled || (scale.initial >= least && scale.initial <= most)) return absl::OkStatus();
  return Bad(
      (moves ? "--loss-scale-initial is " : "--loss-scale is ") + Shortest(scale.initial) +
      ": give " +
      (moves ? Shortest(least) + " to " + Shortest(most) : "2^-126 or more, finite in fp32"));
}

Status CheckPrecision(const Options& o) {
  if (o.master == "remainder" && o.dtype != "bf16") {
    return Bad("--master remainder is what bf16 weights lack: give --dtype bf16");
  }
  constexpr std::array kWords = {"auto", "dynamic", "off"};
  const bool is_word = std::find(kWords.begin(), kWords.end(), o.loss_scale) != kWords.end();
  char* end = nullptr;
  std::strtod(o.loss_scale.c_str(), &end);
  if (!is_word && (o.loss_scale.empty() || *end != '\0')) {
    return Bad("--loss-scale " + o.loss_scale + " is unknown: give auto, dynamic, off or a number");
  }
  return CheckLossScale(o);
}

// What says how disks are used goes with disks.
Status CheckOffload(const Options& o) {
  const struct {
    const char* flag;
    bool given;
    int least_stage;
  } on_disk[] = {{"--offload", o.offload == "nvme", 0},
                 {"--params-offload", o.params_offload == "nvme", 3},
                 {"--gradients-offload", o.gradients_offload == "nvme", 2}};
  for (const auto& [flag, given, least_stage] : on_disk) {
    if (given && o.nvme_paths.empty()) {
      return Bad(std::string(flag) + " nvme needs a folder on a local disk: give --nvme-path");
    }
    if (given && o.zero_stage < least_stage) {
      return Bad(std::string(flag) + " nvme is of what comes in frames: give --zero-stage " +
                 std::to_string(least_stage) + (least_stage < 3 ? " or more" : ""));
    }
  }
  const Options defaults;
  if (o.offload != "nvme" && o.host_budget != defaults.host_budget) {
    return Bad("--host-budget is of states: give --offload nvme, or leave it");
  }
  if (o.gradients_offload == "nvme" && o.accumulate > 1) {
    return Bad(
        "--gradients-offload nvme: sums of micro-batches stay in memory; give --accumulate 1");
  }
  if (o.UsesDisk()) return absl::OkStatus();
  const std::pair<const char*, bool> of_disk[] = {
      {"--nvme-path", !o.nvme_paths.empty()},          {"--window", o.window != 0},
      {"--io-engine", o.io_engine != "best"},          {"--require-pinned", o.require_pinned},
      {"--offload-faults", !o.offload_faults.empty()},
  };
  for (const auto& [flag, given] : of_disk) {
    if (given)
      return Bad(std::string(flag) +
                 " is of disks: give --offload nvme, "
                 "--params-offload nvme or --gradients-offload nvme");
  }
  return absl::OkStatus();
}

// What says how frames are used goes with them.
Status CheckFrames(const Options& o) {
  const struct {
    const char* flag;
    bool given;
    int least_stage;
  } of_frames[] = {{"--max-live-parameters", o.max_live_parameters_bytes != 0, 3},
                   {"--max-live-gradients", o.max_live_gradients_bytes != 0, 2},
                   {"--persistence-threshold", o.persistence_threshold_elems != 0, 3}};
  for (const auto& [flag, given, least_stage] : of_frames) {
    if (!given || o.zero_stage >= least_stage) continue;
    return Bad(std::string(flag) + " is of what comes in frames: give --zero-stage " +
               std::to_string(least_stage) + (least_stage < 3 ? " or more" : ""));
  }
  return absl::OkStatus();
}

// What the reference has not got.
Status CheckReference(const Options& o) {
  const Options defaults;
  const std::pair<const char*, bool> of_engine[] = {
      {"--trace", !o.trace.empty()},
      {"--dtype", o.dtype != "fp32"},
      {"--master", o.master != "fp32"},
      {"--optimizer-rule", o.rule != "adamw"},
      {"--reproducible", o.reproducible},
      {"--loss-scale", o.loss_scale != "auto"},
      {"--momentum", o.momentum != 0},
      {"--nesterov", o.nesterov},
      {"--offload", o.offload != "none"},
      {"--params-offload", o.params_offload != "host"},
      {"--gradients-offload", o.gradients_offload != "host"},
      {"--overlap-next-forward", o.overlap_next_forward},
      {"--zero-stage", o.zero_stage != defaults.zero_stage},
      {"--max-live-parameters", o.max_live_parameters_bytes != 0},
      {"--max-live-gradients", o.max_live_gradients_bytes != 0},
      {"--device-budget", o.device_budget != defaults.device_budget},
      {"--persistence-threshold", o.persistence_threshold_elems != 0},
      {"--bucket-elems", o.bucket_elems != defaults.bucket_elems},
      {"--update-threads", o.update_threads != 0},
      {"--communication-timeout", o.communication_timeout_s != defaults.communication_timeout_s},
      {"--instruction-set", o.instruction_set != "best"},
  };
  for (const auto& [flag, given] : of_engine) {
    if (!given || o.optimizer != "torch") continue;
    return Bad(std::string(flag) + " is the engine's: give --optimizer zerohold");
  }
  return absl::OkStatus();
}

}  // namespace

Status Check(const Options& o) {
  if (Status s = CheckCounts(o); !s.ok()) return s;
  if (o.width % o.heads != 0) {
    return Bad("--width " + std::to_string(o.width) + " is no multiple of --heads " +
               std::to_string(o.heads) + ": give a width that the heads divide");
  }
  if (Status s = CheckAttention(o); !s.ok()) return s;
  if (Status s = CheckWords(o); !s.ok()) return s;
  const std::pair<const char*, double> rates[] = {
      {"--learning-rate", o.learning_rate}, {"--weight-decay", o.weight_decay}, {"--clip", o.clip}};
  for (const auto& [flag, value] : rates) {
    if (Status s = CheckNotNegative(flag, value); !s.ok()) return s;
  }
  if (Status s = CheckPrecision(o); !s.ok()) return s;
  if (Status s = CheckReference(o); !s.ok()) return s;
  if (Status s = CheckFrames(o); !s.ok()) return s;
  if (Status s = CheckOffload(o); !s.ok()) return s;
  const ScheduleOptions schedule = o.Schedule();
  if (schedule.warmup_steps >= schedule.total_steps) {
    return Bad("--warmup " + std::to_string(schedule.warmup_steps) +
               " does not end before the schedule of " + std::to_string(schedule.total_steps) +
               " steps: give fewer, or more --total-steps");
  }
  return absl::OkStatus();
}

}  // namespace zerohold::train
