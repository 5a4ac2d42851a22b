#include "mpi-launch/train/options.h"

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

#include "mpi-launch/train/option_checks.h"
#include "mpi-launch/train/sizes.h"

namespace zerohold::train {
namespace {

Status Bad(const std::string& text) { return absl::InvalidArgumentError(text); }

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

CLI::Validator BudgetText() {
  return CLI::Validator(
      [](std::string& text) { return std::string(ParseBudget(text).status().message()); },
      "BUDGET");
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
                 "Bytes of gathered weights at one time, as 64MiB; 0: the least and a unit more")
      ->transform(Size());
  app.add_option("--max-live-gradients", o.max_live_gradients_bytes,
                 "Bytes of gradients not yet reduced; 0: the least and a unit more")
      ->transform(Size());
  app.add_option("--device-budget", o.device_budget,
                 "The most memory of weights and gradients where they are computed with, as 2GiB, "
                 "or 25% of what all would take; what is left of it is for gathered ones")
      ->check(BudgetText());
  app.add_option("--persistence-threshold", o.persistence_threshold_elems,
                 "Units of fewer elements stay gathered at stage 3");
  app.add_option("--bucket-elems", o.bucket_elems, "Elements that one collective moves");
  app.add_option("--update-threads", o.update_threads,
                 "Threads of the update on each rank; 0: the cores that it has");
  app.add_option("--communication-timeout", o.communication_timeout_s,
                 "Seconds after which a wait for another rank is given up; of a disk, half of it");
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
  app.add_option("--host-budget", o.host_budget,
                 "States that each rank keeps in host memory all the same, as 2GiB or 25%")
      ->check(BudgetText());
  app.add_option("--window", o.window,
                 "Records under way at a time, read, updated or written; 0: as many as 44 MiB "
                 "hold, from 3 to 16");
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
