// What one rank pays to plan a very large model: time, and memory that grows with neither elements
// nor ranks.
//
// bench-layout [--elements 10^12] [--tensors 20000] [--ranks 4096] [--rounds 7] [--json]. Each
// round is a process of its own, so that the peak is of one plan: list, layout and all else in it.
// Medians of the time of Layout::Create alone. The limits: 1 s and 100 MB.
#include "src/layout/layout.h"

#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "bench/report.h"

namespace zerohold::bench {
namespace {

constexpr double kLimitS = 1.0;
constexpr double kLimitMb = 100.0;
constexpr int64_t kTensorsInUnit = 20;  // about what a transformer block has

struct Model {
  int64_t elements = 1'000'000'000'000;
  int64_t tensors = 20000;
};

struct Cost {
  double seconds;
  double peak_mb;
};

[[noreturn]] void Fail(const std::string& what) {
  std::cerr << what << "\n";
  std::exit(1);
}

double PeakResidentMb() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return 1024e-6 * std::strtod(line.c_str() + 6, nullptr);
  }
  Fail("/proc/self/status has no VmHWM");
}

Cost Plan(const Model& model, const layout::LayoutConfig& config) {
  std::vector<ParameterSpec> parameters;
  std::vector<UnitSpec> units;
  for (int64_t i = 0; i < model.tensors; ++i) {
    ParameterSpec parameter;
    parameter.name = "block." + std::to_string(i / kTensorsInUnit) + ".tensor." + std::to_string(i);
    parameter.shape = {model.elements / model.tensors + (i < model.elements % model.tensors)};
    parameter.dtype = DType::kBFloat16;
    if (i % kTensorsInUnit == 0)
      units.push_back({"block." + std::to_string(i / kTensorsInUnit), {}, {}});
    units.back().parameters.push_back(parameter.name);
    parameters.push_back(std::move(parameter));
  }
  const double begin = NowSeconds();
  const auto layout = layout::Layout::Create(config, parameters, units);
  const double seconds = NowSeconds() - begin;
  if (!layout.ok()) Fail(layout.status().ToString());
  if (layout->total_elems() != model.elements) Fail("the plan has another number of elements");
  return {seconds, PeakResidentMb()};
}

// Plan in a child, whose peak begins at what it inherits.
Cost PlanApart(const Model& model, const layout::LayoutConfig& config) {
  int ends[2];
  if (pipe(ends) != 0) Fail("no pipe");
  const pid_t child = fork();
  if (child == 0) {
    const Cost cost = Plan(model, config);
    _exit(write(ends[1], &cost, sizeof(cost)) == sizeof(cost) ? 0 : 1);
  }
  close(ends[1]);
  Cost cost = {};
  const bool told = read(ends[0], &cost, sizeof(cost)) == sizeof(cost);
  close(ends[0]);
  waitpid(child, nullptr, 0);
  if (!told) Fail("no plan");
  return cost;
}

int Main(int argc, char** argv) {
  Model model;
  int ranks = 4096;
  int rounds = 7;
  bool json = false;
  CLI::App app("Planning a layout beside its limits of time and memory");
  app.add_option("--elements", model.elements)
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--tensors", model.tensors)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--ranks", ranks)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--json", json);
  CLI11_PARSE(app, argc, argv);

  std::vector<Line> times, peaks;
  for (const int stage : {1, 3}) {
    for (const int rank : {0, ranks - 1}) {
      layout::LayoutConfig config;
      config.communicators = {{ranks, rank}};
      config.gradient_frames = config.parameter_frames = stage == 3;
      std::vector<double> seconds, peak_mb;
      for (int round = 0; round < rounds; ++round) {
        const Cost cost = PlanApart(model, config);
        seconds.push_back(cost.seconds);
        peak_mb.push_back(cost.peak_mb);
      }
      const std::string name = "stage=" + std::to_string(stage) + ",rank=" + std::to_string(rank) +
                               ",of=" + std::to_string(ranks);
      times.push_back({name, Median(seconds), kLimitS});
      peaks.push_back({name, Median(peak_mb), kLimitMb});
    }
  }
  const Report time("layout", "s", json, Bound::kLimit);
  for (const Line& line : times) time.Add(line);
  const Report peak("layout", "MB", json, Bound::kLimit);
  for (const Line& line : peaks) peak.Add(line);
  return 0;
}

}  // namespace
}  // namespace zerohold::bench

int main(int argc, char** argv) { return zerohold::bench::Main(argc, argv); }
