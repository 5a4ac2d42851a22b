#include "mpi-launch/train/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <sstream>

namespace zerohold::train {
namespace {

Status Bad(const std::string& text) { return absl::InvalidArgumentError(text); }

Status CheckAtLeast(const char* flag, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return Bad(std::string(flag) + " is " + std::to_string(value) + ": give " +
             std::to_string(least) + " or more");
}

Status CheckNotNegative(const char* flag, double value) {
  if (std::isfinite(value) && value >= 0) return absl::OkStatus();
  return Bad(std::string(flag) + " is " + std::to_string(value) + ": give 0 or more, finite");
}

Status CheckDType(const std::string& dtype) {
  if (dtype == "fp32") return absl::OkStatus();
  if (dtype == "bf16" || dtype == "fp16") {
    return absl::UnimplementedError("--dtype " + dtype + " is not in this version: give fp32");
  }
  return Bad("--dtype " + dtype + " is unknown: give fp32, bf16 or fp16");
}

Status Check(const Options& o) {
  const struct {
    const char* flag;
    int64_t value;
    int64_t least;
  } counts[] = {
      {"--layers", o.layers, 1},
      {"--heads", o.heads, 1},
      {"--width", o.width, 1},
      {"--context", o.context, 1},
      {"--micro-batch", o.micro_batch, 1},
      {"--accumulate", o.accumulate, 1},
      {"--steps", o.steps, 1},
      {"--total-steps", o.total_steps, 0},
      {"--warmup", o.warmup, -1},
      {"--compute-threads", o.compute_threads, 1},
      {"--update-threads", o.update_threads, 0},
      {"--bucket-elems", o.bucket_elems, 1},
      {"--zero-stage", o.zero_stage, 0},
  };
  for (const auto& count : counts) {
    if (Status s = CheckAtLeast(count.flag, count.value, count.least); !s.ok()) return s;
  }
  if (o.width % o.heads != 0) {
    return Bad("--width " + std::to_string(o.width) + " is no multiple of --heads " +
               std::to_string(o.heads) + ": give a width that the heads divide");
  }
  if (Status s = CheckDType(o.dtype); !s.ok()) return s;
  const std::pair<const char*, double> rates[] = {
      {"--learning-rate", o.learning_rate}, {"--weight-decay", o.weight_decay}, {"--clip", o.clip}};
  for (const auto& [flag, value] : rates) {
    if (Status s = CheckNotNegative(flag, value); !s.ok()) return s;
  }
  if (o.optimizer != "zerohold" && o.optimizer != "torch") {
    return Bad("--optimizer " + o.optimizer + " is unknown: give zerohold or torch");
  }
  if (o.instruction_set != "best" && o.instruction_set != "baseline" && o.instruction_set != "v3" &&
      o.instruction_set != "v4") {
    return Bad("--instruction-set " + o.instruction_set +
               " is unknown: give best, baseline, v3 or v4");
  }
  if (!o.trace.empty() && o.optimizer == "torch") {
    return Bad("--trace tells what the engine does: give --optimizer zerohold");
  }
  const ScheduleOptions schedule = o.Schedule();
  if (schedule.warmup_steps >= schedule.total_steps) {
    return Bad("--warmup " + std::to_string(schedule.warmup_steps) +
               " does not end before the schedule of " + std::to_string(schedule.total_steps) +
               " steps: give fewer, or more --total-steps");
  }
  return absl::OkStatus();
}

void Declare(CLI::App& app, Options& o) {
  app.option_defaults()->always_capture_default();
  app.add_option("--data", o.data, "Files and folders of text; a folder with all below it");
  app.add_option("--layers", o.layers, "Transformer blocks; each is a unit");
  app.add_option("--heads", o.heads, "Attention heads; they divide the width");
  app.add_option("--width", o.width, "Channels");
  app.add_option("--context", o.context, "Bytes that one sample holds");
  app.add_option("--micro-batch", o.micro_batch, "Samples that one rank computes at a time");
  app.add_option("--accumulate", o.accumulate, "Micro-batches of a rank in one step");
  app.add_option("--steps", o.steps, "Steps to train");
  app.add_option("--total-steps", o.total_steps, "Steps of the cosine schedule; 0: as --steps");
  app.add_option("--warmup", o.warmup,
                 "Steps in which the rate rises; -1: a tenth of the schedule, at most 100");
  app.add_option("--learning-rate", o.learning_rate, "Highest learning rate");
  app.add_option("--weight-decay", o.weight_decay,
                 "Decay of matrices (norms and biases have none)");
  app.add_option("--clip", o.clip, "Largest norm of the gradient; 0: no limit");
  app.add_option("--dtype", o.dtype, "What is computed in: fp32");
  app.add_option("--seed", o.seed, "Of the first weights and of the samples");
  app.add_flag("--recompute", o.recompute, "Compute each block again in the backward pass");
  app.add_option("--compute-threads", o.compute_threads,
                 "Torch's threads on each rank; another number gives other bits");
  app.add_option("--optimizer", o.optimizer,
                 "zerohold, or torch: the reference without the engine");
  app.add_option("--zero-stage", o.zero_stage,
                 "0 replicates all; 1 shards optimizer states, 2 gradients too, 3 weights too");
  app.add_option("--bucket-elems", o.bucket_elems, "Elements that one collective moves");
  app.add_option("--update-threads", o.update_threads,
                 "Threads of the update on each rank; 0: the cores that it has");
  app.add_option("--instruction-set", o.instruction_set, "Of the update: best, baseline, v3 or v4");
  app.add_option("--log", o.log, "Write one JSON object a step to this file");
  app.add_option("--trace", o.trace,
                 "Write a Chrome trace to this file (rank r > 0: with .r before its extension)");
}

// CLI11's own text of all options, less those that ranks may differ in.
std::string AgreedText(const CLI::App& app) {
  std::istringstream all(app.config_to_str(/*default_also=*/true));
  std::string agreed;
  for (std::string line; std::getline(all, line);) {
    const std::string name = line.substr(0, line.find('='));
    if (name == "data" || name == "log" || name == "trace" || name.empty()) continue;
    agreed += line + "\n";
  }
  return agreed;
}

std::string FirstLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

ScheduleOptions Options::Schedule() const {
  ScheduleOptions schedule;
  schedule.kind = ScheduleKind::kCosine;
  schedule.total_steps = total_steps > 0 ? total_steps : steps;
  schedule.warmup_steps = warmup >= 0 ? warmup : std::min<int64_t>(100, schedule.total_steps / 10);
  schedule.final_fraction = 0.1;
  return schedule;
}

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
  Declare(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return absl::CancelledError(app.help());
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
