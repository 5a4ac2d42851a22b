#include "mpi-launch/train/options.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <limits>
#include <sstream>
#include <type_traits>

#include "mpi-launch/train/sizes.h"

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
                 std::to_string(least_stage) + " or more");
    }
  }
  if (o.offload != "nvme" && o.host_budget_bytes != 0) {
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
    if (given) return Bad(std::string(flag) + " is of disks: give --offload nvme");
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
      {"--persistence-threshold", o.persistence_threshold_elems != 0},
      {"--bucket-elems", o.bucket_elems != defaults.bucket_elems},
      {"--update-threads", o.update_threads != 0},
      {"--instruction-set", o.instruction_set != "best"},
  };
  for (const auto& [flag, given] : of_engine) {
    if (!given || o.optimizer != "torch") continue;
    return Bad(std::string(flag) + " is the engine's: give --optimizer zerohold");
  }
  return absl::OkStatus();
}

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
  if (Status s = CheckOffload(o); !s.ok()) return s;
  const ScheduleOptions schedule = o.Schedule();
  if (schedule.warmup_steps >= schedule.total_steps) {
    return Bad("--warmup " + std::to_string(schedule.warmup_steps) +
               " does not end before the schedule of " + std::to_string(schedule.total_steps) +
               " steps: give fewer, or more --total-steps");
  }
  return absl::OkStatus();
}

// Replaces a size by its bytes.
CLI::Validator Size() {
  const auto to_bytes = [](std::string& text) -> std::string {
    const StatusOr<int64_t> bytes = ParseSize(text);
    if (!bytes.ok()) return std::string(bytes.status().message());
    text = std::to_string(*bytes);
    return "";
  };
  return CLI::Validator(to_bytes, "SIZE");
}

// Replaces a number in digits by itself, and refuses all else. What is too large is left for CLI11.
template <typename Number>
CLI::Validator Numeral(const std::string& refusal) {
  return CLI::Validator(
      [refusal](std::string& text) -> std::string {
        Number number = 0;
        const char* const end = text.data() + text.size();
        const auto [rest, error] = std::from_chars(text.data(), end, number);
        if (rest != end || error == std::errc::invalid_argument) {
          return "\"" + text + "\" " + refusal;
        }
        // CLI11 would read 010 as eight.
        if (std::is_integral_v<Number> && error == std::errc()) text = std::to_string(number);
        return "";
      },
      "");
}

void CheckNumerals(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->get_type_name() == "INT") {
      option->transform(Numeral<int64_t>("is no whole number: give digits alone, as 1000"));
    } else if (option->get_type_name() == "FLOAT") {
      option->transform(Numeral<double>("is no number: give one as 0.001 or 1e-3"));
    }
  }
}

void DeclareTask(CLI::App& app, Options& o) {
  app.option_defaults()->group("The model and its text");
  app.add_option("--data", o.data, "Files and folders of text; a folder with all below it");
  app.add_option("--layers", o.layers, "Transformer blocks; each is a unit");
  app.add_option("--heads", o.heads, "Attention heads; they divide the width");
  app.add_option("--width", o.width, "Channels");
  app.add_option("--context", o.context, "Bytes that one sample holds");
  app.add_option("--seed", o.seed, "Of the first weights and of the samples");

  app.option_defaults()->group("The run");
  app.add_option("--micro-batch", o.micro_batch, "Samples that one rank computes at a time");
  app.add_option("--accumulate", o.accumulate, "Micro-batches of a rank in one step");
  app.add_option("--steps", o.steps, "Steps to train");
  app.add_option("--evaluate-every", o.evaluate_every,
                 "Steps between losses on as many samples as a step has, the same each time; 0: "
                 "none");
  app.add_flag("--recompute", o.recompute, "Compute each block again in the backward pass");
  app.add_option("--compute-threads", o.compute_threads,
                 "Torch's threads on each rank; another number gives other bits");
  app.add_option("--log", o.log, "Write one JSON object a step to this file");
  app.add_option("--trace", o.trace,
                 "Write a Chrome trace to this file (rank r > 0: with .r before its extension)");
}

void DeclareUpdate(CLI::App& app, Options& o) {
  app.option_defaults()->group("The update");
  app.add_option("--optimizer", o.optimizer,
                 "zerohold, or torch: the reference without the engine, AdamW in fp32");
  app.add_option("--optimizer-rule", o.rule, "adamw, adam, sgd, lion or adagrad");
  app.add_option("--learning-rate", o.learning_rate, "Highest learning rate");
  app.add_option("--warmup", o.warmup,
                 "Steps in which the rate rises; -1: a tenth of the schedule, at most 100");
  app.add_option("--total-steps", o.total_steps, "Steps of the cosine schedule; 0: as --steps");
  app.add_option("--weight-decay", o.weight_decay,
                 "Decay of matrices (norms and biases have none)");
  app.add_option("--beta1", o.beta1, "Of adamw, adam and lion");
  app.add_option("--beta2", o.beta2, "Of adamw, adam and lion");
  app.add_option("--epsilon", o.epsilon, "Of adamw, adam and adagrad");
  app.add_option("--momentum", o.momentum, "Of sgd");
  app.add_flag("--nesterov", o.nesterov, "Of sgd with momentum");
  app.add_option("--clip", o.clip, "Largest norm of the gradient; 0: no limit");
}

void DeclareEngine(CLI::App& app, Options& o) {
  app.option_defaults()->group("Precision");
  app.add_option("--dtype", o.dtype, "Of weights and gradients: fp32, bf16 or fp16");
  app.add_option("--compute-dtype", o.compute_dtype,
                 "fp32, or auto: that of the weights where torch is fast in it on this CPU (bf16 "
                 "with AVX-512), else fp32");
  app.add_option("--master", o.master,
                 "The fp32 weights behind 16-bit ones: fp32, or remainder (bf16 alone)");
  app.add_option("--loss-scale", o.loss_scale,
                 "dynamic, off or a number; auto: dynamic in fp16, else off");
  app.add_option("--loss-scale-initial", o.loss_scale_initial, "Where a dynamic one begins");
  app.add_option("--loss-scale-interval", o.loss_scale_interval,
                 "Steps without a skip after which it doubles");

  app.option_defaults()->group("The engine");
  app.add_option("--zero-stage", o.zero_stage,
                 "0 replicates all; 1 shards optimizer states, 2 gradients too, 3 weights too");
  app.add_flag("--reproducible", o.reproducible,
               "The same bits on 1, 2, 4 ... ranks, when ranks times --accumulate is the same");
  app.add_flag("--overlap-next-forward", o.overlap_next_forward,
               "Updates go on under the next forward pass; the same bits");
  app.add_option("--max-live-parameters", o.max_live_parameters_bytes,
                 "Bytes of gathered weights at one time, as 64MiB; 0: the two largest units")
      ->transform(Size());
  app.add_option("--max-live-gradients", o.max_live_gradients_bytes,
                 "Bytes of gradients not yet reduced; 0: the two largest units")
      ->transform(Size());
  app.add_option("--persistence-threshold", o.persistence_threshold_elems,
                 "Units of fewer elements stay gathered at stage 3");
  app.add_option("--bucket-elems", o.bucket_elems, "Elements that one collective moves");
  app.add_option("--update-threads", o.update_threads,
                 "Threads of the update on each rank; 0: the cores that it has");
  app.add_option("--instruction-set", o.instruction_set, "Of the update: best, baseline, v3 or v4");
}

void DeclareOffload(CLI::App& app, Options& o) {
  app.option_defaults()->group("Where states, parameters and gradients rest");
  app.add_option("--offload", o.offload,
                 "none or host, which on CPUs are the same: all in host memory; nvme: in files on "
                 "local disks");
  app.add_option("--params-offload", o.params_offload,
                 "The same of each rank's shards of parameters: host, or nvme (stage 3)");
  app.add_option("--gradients-offload", o.gradients_offload,
                 "Of its reduced gradients: host, or nvme (stages 2 and 3, --accumulate 1)");
  app.add_option("--nvme-path", o.nvme_paths,
                 "A folder on a local disk; again for more, which share the records. The files "
                 "have no name, and nothing stays");
  app.add_option("--host-budget", o.host_budget_bytes,
                 "Bytes of states that each rank keeps in host memory all the same, as 2GiB")
      ->transform(Size());
  app.add_option("--window", o.window,
                 "Records under way at a time, read, updated or written; 0: 8, or as many as 44 "
                 "MiB hold");
  app.add_option("--io-engine", o.io_engine,
                 "uring, threads, or best: uring where the kernel allows it");
  app.add_flag("--require-pinned", o.require_pinned,
               "Fail where staging memory cannot be locked, which is told else");
  app.add_option("--offload-faults", o.offload_faults,
                 "For tests: faults of the disk, as \"short=0.2,again=0.1,seed=7\"; zh-stress "
                 "--help lists them");
}

// CLI11's own text of all options, less those that ranks may differ in.
std::string AgreedText(const CLI::App& app) {
  std::istringstream all(app.config_to_str(/*default_also=*/true));
  std::string agreed;
  for (std::string line; std::getline(all, line);) {
    const std::string name = line.substr(0, line.find('='));
    constexpr std::array kOwn = {
        "",       "data",        "log",       "trace",          "nvme-path",
        "window", "host-budget", "io-engine", "require-pinned", "offload-faults"};
    if (std::find(kOwn.begin(), kOwn.end(), name) != kOwn.end()) continue;
    agreed += line + "\n";
  }
  return agreed;
}

std::string FirstLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

std::string Options::TracePath(int rank) const {
  if (trace.empty() || rank == 0) return trace;
  const std::filesystem::path path(trace);
  const std::string name = path.stem().string() + "." + std::to_string(rank);
  return std::filesystem::path(path).replace_filename(name + path.extension().string());
}

StatusOr<Options> ParseOptions(int argc, const char* const* argv) {
  Options options;
  CLI::App app("Trains a small GPT on the bytes of text through ZeroHold; start it with mpirun.",
               "zh-train");
  app.option_defaults()->always_capture_default();
  DeclareTask(app, options);
  DeclareUpdate(app, options);
  DeclareEngine(app, options);
  DeclareOffload(app, options);
  CheckNumerals(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return absl::CancelledError(app.help());
  } catch (const CLI::ConversionError& error) {
    return Bad(FirstLine(error.what()) + ": give a number that 32 bits hold");
  } catch (const CLI::ParseError& error) {
    return Bad(FirstLine(error.what()) + ": zh-train --help lists the flags");
  }
  if (Status s = Check(options); !s.ok()) return s;
  options.agreed_text = AgreedText(app);
  return options;
}

Status CompareLines(const std::string& mine, const std::string& first) {
  std::istringstream my_lines(mine), first_lines(first);
  std::string my_line, first_line;
  while (std::getline(my_lines, my_line)) {
    std::getline(first_lines, first_line);
    if (my_line == first_line) continue;
    return absl::FailedPreconditionError(my_line + ", but " + first_line +
                                         " on rank 0: give every rank the same");
  }
  return absl::OkStatus();
}

}  // namespace zerohold::train
