// What a step costs over many small tensors, against one tensor of the same total: the ceiling.
//
// bench-tensors [--tensors 20000] [--elements 64] [--steps 31] [--json]. One rank, AdamW in fp32;
// both engines step alternately in one process; medians.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>

#include "bench/report.h"
#include "zerohold/engine.h"

namespace zerohold::bench {
namespace {

std::unique_ptr<Engine> MakeEngine(int64_t tensors, int64_t elements, int groups) {
  EngineOptions options;
  options.update_threads = 1;
  options.groups.resize(groups);
  std::vector<ParameterSpec> parameters;
  UnitSpec unit{"model", {}, {}};
  for (int64_t i = 0; i < tensors; ++i) {
    ParameterSpec parameter;
    parameter.name = "tensor." + std::to_string(i);
    parameter.shape = {elements};
    parameter.group = static_cast<int>(i % groups);
    unit.parameters.push_back(parameter.name);
    parameters.push_back(std::move(parameter));
  }
  auto engine =
      Engine::Create(options, {SelfCommunicator()}, std::move(parameters), {std::move(unit)});
  if (!engine.ok()) {
    std::cerr << engine.status() << "\n";
    std::exit(1);
  }
  return *std::move(engine);
}

// Seconds from the report of the gradients to the end of the step.
double TimeStep(Engine& engine) {
  Status status = engine.BeginMicroBatch();
  if (status.ok()) status = engine.Acquire(0, AcquireMode::kBackward);
  const TensorView gradient = engine.Gradient(0);
  std::fill_n(static_cast<float*>(gradient.data), gradient.elems, 0.01f);
  const double begin = NowSeconds();
  if (status.ok()) status = engine.GradReady(0);
  if (status.ok()) status = engine.Step().status();
  const double end = NowSeconds();
  if (status.ok()) status = engine.Release(0);
  if (!status.ok()) {
    std::cerr << status << "\n";
    std::exit(1);
  }
  return end - begin;
}

int Main(int argc, char** argv) {
  int64_t tensors = 20000;
  int64_t elements = 64;
  int steps = 31;
  bool json = false;
  CLI::App app("A step over many small tensors beside a step over one of the same total");
  app.add_option("--tensors", tensors)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--elements", elements, "of each tensor")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--steps", steps)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--json", json);
  CLI11_PARSE(app, argc, argv);

  const auto one = MakeEngine(1, tensors * elements, 1);
  const auto many = MakeEngine(tensors, elements, 1);
  const auto two_groups = MakeEngine(tensors, elements, 2);
  std::vector<double> one_s, many_s, two_groups_s;
  for (int step = -3; step < steps; ++step) {  // three to warm up
    const double times[] = {TimeStep(*one), TimeStep(*many), TimeStep(*two_groups)};
    if (step < 0) continue;
    one_s.push_back(times[0]);
    many_s.push_back(times[1]);
    two_groups_s.push_back(times[2]);
  }
  const Report report("tensors", "us/step", json);
  const std::string shape = std::to_string(tensors) + " of " + std::to_string(elements);
  report.Add({shape + ", one group", Median(many_s) * 1e6, Median(one_s) * 1e6});
  report.Add({shape + ", groups alternate", Median(two_groups_s) * 1e6, Median(one_s) * 1e6});
  return 0;
}

}  // namespace
}  // namespace zerohold::bench

int main(int argc, char** argv) { return zerohold::bench::Main(argc, argv); }
