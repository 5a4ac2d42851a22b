#include "bench/stress/options.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <absl/time/time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <sstream>

#include "src/base/status_macros.h"
#include "src/base/units.h"

namespace zerohold::bench {
namespace {

constexpr std::array kDTypes = {"fp32", "bf16", "fp16"};
constexpr std::array kMasters = {"fp32", "remainder"};
constexpr std::array kRules = {"adamw", "adam", "sgd", "lion", "adagrad"};
constexpr std::array kTiers = {"host", "nvme"};
constexpr std::array kParameterTiers = {"host", "nvme", "none"};
constexpr int64_t kMostParams = 1'000'000'000'000;
constexpr int64_t kMostSteps = 1'000'000'000'000;

constexpr char kFooter[] =
    R"(The table, of one step, medians: busy s is how long a link was in use, with what went before
the step, under the gradients; GB/s its bytes in that time; ceiling what the raw replay reached;
bound s how long the replay took, reads and writes at once. ratio is bound s over the step: 1 is
the best there can be when nothing else uses the disk meanwhile; with --overlap-next-forward it may
be more, for bytes move under the forward pass. In --json read_bytes and write_bytes are of all
steps, the rest is of one.

Faults: short moves fewer bytes than asked, again answers EAGAIN or EINTR, eio and enospc that
error; flip turns one bit of what was read, stale tells that a write was done which was not, late
holds an answer back until others have come, lost gives none. Transfers before first and behind last
are left alone; halve_every and again_every hit each n-th, flip_begin and flip_end bound the bytes
of a flip. What can be mended is mended: short, again and late change nothing.)";

template <typename... Text>
Status Bad(const Text&... text) {
  return absl::InvalidArgumentError(absl::StrCat(text...));
}

template <typename Words>
Status CheckWord(const char* flag, const std::string& value, const Words& words) {
  if (std::find(words.begin(), words.end(), value) != words.end()) return absl::OkStatus();
  return Bad(flag, " ", value, " is unknown: give one of ", absl::StrJoin(words, ", "));
}

// The enum's value that `word` stands for. Requires: `word` is among `words`.
template <typename Enum, typename Words>
Enum Meaning(const Words& words, const std::string& word) {
  return static_cast<Enum>(std::find(words.begin(), words.end(), word) - words.begin());
}

Status CheckWords(const StressOptions& o) {
  ZH_RETURN_IF_ERROR(CheckWord("--tier", o.tier, kTiers));
  ZH_RETURN_IF_ERROR(CheckWord("--gradients", o.gradients, kTiers));
  ZH_RETURN_IF_ERROR(CheckWord("--parameters", o.parameters, kParameterTiers));
  ZH_RETURN_IF_ERROR(CheckWord("--dtype", o.dtype, kDTypes));
  ZH_RETURN_IF_ERROR(CheckWord("--master", o.master, kMasters));
  ZH_RETURN_IF_ERROR(CheckWord("--rule", o.rule, kRules));
  return absl::OkStatus();
}

// What comes in frames alone need not stay in memory.
Status CheckStage(const StressOptions& o) {
  if (o.zero_stage < 0) return absl::OkStatus();
  if (o.parameters != "host" && o.zero_stage < 3) {
    return Bad("--parameters ", o.parameters, " at --zero-stage ", o.zero_stage,
               ": there they stay in memory; give --zero-stage 3");
  }
  if (o.gradients != "host" && o.zero_stage < 2) {
    return Bad("--gradients ", o.gradients, " at --zero-stage ", o.zero_stage,
               ": there they stay in memory; give --zero-stage 2 or 3");
  }
  return absl::OkStatus();
}

Status CheckDisk(const StressOptions& o) {
  if (o.parameters == "none" && o.tier != "nvme") {
    return Bad("--parameters none is for states on disk: give --tier nvme");
  }
  if (o.on_disk()) {
    return o.nvme_paths.empty()
               ? Bad("nvme needs --nvme-path: give at least one folder on a local disk")
               : absl::OkStatus();
  }
  const std::pair<const char*, bool> of_disk[] = {
      {"--nvme-path", !o.nvme_paths.empty()},
      {"--window", o.window != 0},
      {"--faults", !o.faults.empty()},
      {"--throttle", o.read_rate + o.write_rate + o.latency_s > 0}};
  for (const auto& [flag, given] : of_disk) {
    if (given) return Bad(flag, " is of the disk: give --tier nvme with it");
  }
  return absl::OkStatus();
}

Status Check(const StressOptions& o) {
  if (o.params < 1 || o.params > kMostParams) {
    return Bad("--params is ", o.params, ": give 1 to 1000B");
  }
  if (o.steps < 1 || o.steps > kMostSteps) {
    return Bad("--steps is ", o.steps, ": give 1 or more, at most 10^12");
  }
  if (!std::isfinite(o.seconds) || o.seconds < 0) {
    return Bad("--seconds is ", o.seconds, ": give more than 0, or leave it out");
  }
  ZH_RETURN_IF_ERROR(CheckWords(o));
  if (o.master == "remainder" && o.dtype != "bf16") {
    return Bad("--master remainder is what bf16 weights lack: give --dtype bf16");
  }
  if (o.parameters == "none" && (o.dtype == "fp32" || o.master == "remainder")) {
    return Bad("--parameters none throws away what the masters of ", o.dtype, " with ", o.master,
               " need: give --dtype bf16 or fp16 with --master fp32");
  }
  const struct {
    const char* flag;
    int64_t value;
    int64_t least;
    int64_t most;
  } counts[] = {{"--zero-stage", o.zero_stage, -1, 3},
                {"--window", o.window, 0, 4096},
                {"--bucket", o.bucket_elems, 1, int64_t{1} << 40},
                {"--record", o.record_elems, 1, int64_t{1} << 40}};
  for (const auto& [flag, value, least, most] : counts) {
    if (value >= least && value <= most) continue;
    return Bad(flag, " is ", value, ": give ", least, " to ", most);
  }
  if (!(o.communication_timeout_s > 0 && o.communication_timeout_s <= 1e9)) {
    return Bad("--communication-timeout is ", o.communication_timeout_s,
               ": give more than 0 and at most 10^9 seconds");
  }
  if (!std::isfinite(o.forward_s) || o.forward_s < 0 || o.forward_s > 3600) {
    return Bad("--forward is ", o.forward_s, ": give 0 to 3600 seconds");
  }
  if (o.overlap_next_forward && o.forward_s == 0) {
    return Bad("--overlap-next-forward needs a forward pass to go on under: give --forward");
  }
  ZH_RETURN_IF_ERROR(CheckStage(o));
  return CheckDisk(o);
}

// "read=1GB/s,latency=0.1ms".
Status ParseThrottle(const std::string& text, StressOptions& o) {
  const std::pair<absl::string_view, double*> rates[] = {{"read", &o.read_rate},
                                                         {"write", &o.write_rate},
                                                         {"update", &o.update_rate},
                                                         {"link", &o.link_rate}};
  const std::pair<absl::string_view, double*> latencies[] = {{"latency", &o.latency_s},
                                                             {"link-latency", &o.link_latency_s}};
  for (const absl::string_view part : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> sides = absl::StrSplit(part, absl::MaxSplits('=', 1));
    bool valid = false;
    for (const auto& [name, rate] : rates) {
      if (name != sides.first) continue;
      const StatusOr<int64_t> bytes =
          base::ParseBytes(std::string(absl::StripSuffix(sides.second, "/s")));
      valid = bytes.ok() && *bytes > 0;
      if (valid) *rate = static_cast<double>(*bytes);
    }
    for (const auto& [name, latency] : latencies) {
      absl::Duration duration;
      if (name != sides.first || !absl::ParseDuration(sides.second, &duration)) continue;
      *latency = absl::ToDoubleSeconds(duration);
      valid = *latency >= 0.0 && *latency <= 3600.0;
    }
    if (valid) continue;
    return Bad("--throttle ", part,
               " is no rate and no latency: give read=1GB/s, write=500MB/s, update=1GB/s, "
               "link=1GB/s, latency=1ms or link-latency=50us");
  }
  return absl::OkStatus();
}

// Replaces "1.5M" by the number it stands for; gives what is wrong with it, "" for nothing.
std::string ReplaceCount(std::string& text) {
  std::string number = absl::AsciiStrToUpper(text);
  if (absl::EndsWith(number, "B")) number.back() = 'G';  // billions; bytes there are none
  const bool unit = !number.empty() && !absl::ascii_isdigit(number.back());
  const StatusOr<int64_t> count = base::ParseBytes(unit ? number + "B" : number);
  if (!count.ok()) {
    return absl::StrCat("\"", text, "\" is no number of elements: give 500000, 32Ki, 1.5M or 4B");
  }
  text = std::to_string(*count);
  return "";
}

void DeclareWork(CLI::App& app, StressOptions& o, std::string& throttle) {
  const CLI::Validator count(&ReplaceCount, "COUNT");
  app.add_option("--params", o.params, "Parameters, as 200M or 4B")->transform(count);
  app.add_option("--tier", o.tier, "Where optimizer states rest: host or nvme");
  app.add_option("--gradients", o.gradients, "Where gradients rest: host or nvme");
  app.add_option("--parameters", o.parameters,
                 "Where parameters rest: host, nvme, or none: thrown away");
  app.add_option("--nvme-path", o.nvme_paths, "Folders on local disks, for nvme");
  app.add_option("--steps", o.steps, "Steps that are measured; one more goes before them");
  app.add_option(
      "--seconds", o.seconds,
      "Instead: steps until this long has passed, the raw replay beside each counted too");
  app.add_option("--window", o.window, "Records under way at a time; 0: as the engine likes");
  app.add_option("--bucket", o.bucket_elems, "Elements that one collective moves")
      ->transform(count);
  app.add_option("--record", o.record_elems,
                 "Elements that one transfer moves, in multiples of 256")
      ->transform(count);
  app.add_option("--dtype", o.dtype, "Of parameters and gradients: fp32, bf16 or fp16");
  app.add_option("--master", o.master, "Behind 16-bit parameters: fp32, or remainder (bf16)");
  app.add_option("--zero-stage", o.zero_stage,
                 "0 to 3; -1: 1, 2 or 3, the first that can have gradients and parameters there");
  app.add_option("--rule", o.rule, "adamw, adam, sgd, lion or adagrad");
  app.add_option("--faults", o.faults,
                 "Of the disk, as eio=0.01,short=0.2,seed=7: probabilities of short, again, eio, "
                 "enospc, flip, stale, late, lost; numbers first, seed, halve_every, again_every, "
                 "last, flip_begin, flip_end");
  app.add_option(
      "--throttle", throttle,
      "Of the disk and of updates, in bytes of records, as read=1GB/s,write=500MB/s,update=1GB/s; "
      "of what a rank sends to others, link=1GB/s; of each transfer, latency=1ms, and of each "
      "collective, link-latency=50us");
  app.add_flag("--overlap-next-forward", o.overlap_next_forward,
               "Updates go on under the next forward pass");
  app.add_option("--forward", o.forward_s,
                 "Seconds of a forward pass behind each step, in which nothing is computed; the "
                 "step's time is what both take beyond it");
  app.add_option("--communication-timeout", o.communication_timeout_s,
                 "Seconds after which a wait for another rank is given up; of a disk, half of it");
  app.add_flag("--verify", o.verify, "Compare every state, at the end, with a recomputed one");
  app.add_flag("--json", o.json, "Lines for programs, the last one with \"final\":true");
  app.add_option("--trace", o.trace, "Write a Chrome trace of rank r to FILE, r > 0 to FILE.r");
  app.add_option("--seed", o.seed, "Of first values and gradients");
}

// CLI11's own text of all options, less those that ranks may differ in.
std::string AgreedText(const CLI::App& app) {
  std::istringstream all(app.config_to_str(/*default_also=*/true));
  std::string agreed;
  for (std::string line; std::getline(all, line);) {
    const std::string name = line.substr(0, line.find('='));
    if (name == "nvme-path" || name == "trace" || name.empty()) continue;
    agreed += line + "\n";
  }
  return agreed;
}

}  // namespace

DType StressOptions::WeightType() const { return Meaning<DType>(kDTypes, dtype); }
UpdateRule StressOptions::Rule() const { return Meaning<UpdateRule>(kRules, rule); }

int StressOptions::ZeroStage() const {
  if (zero_stage >= 0) return zero_stage;
  return parameters != "host" ? 3 : gradients != "host" ? 2 : 1;
}

EngineOptions StressOptions::Engine(int rank) const {
  EngineOptions options;
  options.zero_stage = ZeroStage();
  options.rule = Rule();
  options.reduction = GradientReduction::kSum;
  options.master = Meaning<MasterForm>(kMasters, master);
  options.bucket_elems = bucket_elems;
  options.record_elems = record_elems;
  options.offload.nvme_paths = nvme_paths;
  if (tier == "host") options.offload.host.states = Budget::All();
  if (gradients == "nvme") options.offload.host.gradients = 0;
  if (parameters != "host") options.offload.host.parameters = 0;
  options.offload.drop_parameters = parameters == "none";
  options.offload.window = window;
  options.offload.faults = faults;
  options.offload.read_rate = read_rate;
  options.offload.write_rate = write_rate;
  options.offload.update_rate = update_rate;
  options.offload.transfer_latency_s = latency_s;
  options.overlap_next_forward = overlap_next_forward;
  options.communication_timeout_s = communication_timeout_s;
  if (!trace.empty()) options.trace_path = rank == 0 ? trace : absl::StrCat(trace, ".", rank);
  return options;
}

StatusOr<StressOptions> ParseStressOptions(int argc, const char* const* argv) {
  StressOptions options;
  std::string throttle;
  CLI::App app(
      "Optimizer steps over states on a tier, beside the bound of its links: a raw replay of the "
      "same transfers, the same memory streams without arithmetic. Start it with mpirun.",
      "zh-stress");
  app.option_defaults()->always_capture_default();
  app.footer(kFooter);
  DeclareWork(app, options, throttle);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return absl::CancelledError(app.help());
  } catch (const CLI::ParseError& error) {
    std::string text = error.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    return Bad(text, ": zh-stress --help lists the flags");
  }
  ZH_RETURN_IF_ERROR(ParseThrottle(throttle, options));
  ZH_RETURN_IF_ERROR(Check(options));
  options.agreed_text = AgreedText(app);
  return options;
}

}  // namespace zerohold::bench
