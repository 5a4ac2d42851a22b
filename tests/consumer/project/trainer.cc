// A trainer of one rank, without MPI calls of its own: fits four weights to known targets.
#include <cmath>
#include <cstdio>

#include "zerohold/engine.h"

namespace {

// Says what failed, and whether something did.
bool Failed(const zerohold::Status& status) {
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return !status.ok();
}

constexpr float kTargets[] = {3.0f, -1.0f, 0.5f, 2.0f};

// Adds the gradient of sum((w - target)^2) / 2.
void AddGradient(const zerohold::TensorView& w, const zerohold::TensorView& gradient) {
  for (int i = 0; i < 4; ++i) {
    static_cast<float*>(gradient.data)[i] += static_cast<const float*>(w.data)[i] - kTargets[i];
  }
}

}  // namespace

int main() {
  zerohold::EngineOptions options;
  options.groups[0].learning_rate = 0.1;
  options.schedule.kind = zerohold::ScheduleKind::kLinear;
  options.schedule.total_steps = 200;
  zerohold::ParameterSpec weights;
  weights.name = "weights";
  weights.shape = {4};
  zerohold::UnitSpec unit;
  unit.name = "all";
  unit.parameters = {"weights"};
  auto created =
      zerohold::Engine::Create(options, {zerohold::SelfCommunicator()}, {weights}, {unit});
  if (Failed(created.status())) return 1;
  zerohold::Engine& engine = **created;
  const zerohold::TensorView w = engine.Parameter(0);
  const zerohold::TensorView gradient = engine.Gradient(0);
  for (int step = 1; step <= 200; ++step) {
    if (Failed(engine.BeginMicroBatch()) ||
        Failed(engine.Acquire(0, zerohold::AcquireMode::kBackward))) {
      return 1;
    }
    AddGradient(w, gradient);
    if (Failed(engine.GradReady(0)) || Failed(engine.Release(0))) return 1;
    const auto stats = engine.Step();
    if (Failed(stats.status()) || !stats->applied || stats->step != step) return 1;
  }
  for (int i = 0; i < 4; ++i) {
    const float value = static_cast<const float*>(w.data)[i];
    if (!(std::fabs(value - kTargets[i]) < 0.05f)) {
      std::fprintf(stderr, "weight %d is %g, not near %g\n", i, value, kTargets[i]);
      return 1;
    }
  }
  return Failed(engine.Close()) ? 1 : 0;
}
