// A trainer of a few lines: gives each parameter the gradient that a function says, and steps.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "zerohold/engine.h"

namespace zerohold::testing {

// Adds this rank's gradient of one micro-batch to `gradient`; `values` are the parameter's.
using GradientFunction =
    std::function<void(ParameterId, std::span<const float> values, std::span<float> gradient)>;

class Trainer {
 public:
  // Every value of every parameter starts as first(parameter, element).
  Trainer(const EngineOptions& options, Communicator communicator,
          std::vector<ParameterSpec> parameters, std::vector<UnitSpec> units,
          const std::function<float(ParameterId, int64_t)>& first)
      : units_(std::move(units)), parameters_(std::move(parameters)) {
    auto engine = Engine::Create(options, {std::move(communicator)}, parameters_, units_);
    EXPECT_TRUE(engine.ok()) << engine.status();
    if (!engine.ok()) return;
    engine_ = *std::move(engine);
    for (UnitId unit = 0; unit < UnitCount(); ++unit) {
      EXPECT_TRUE(engine_->Acquire(unit, AcquireMode::kWrite).ok());
      for (const ParameterId id : ParametersOf(unit)) {
        const std::span<float> values = Values(id);
        for (size_t i = 0; i < values.size(); ++i) values[i] = first(id, static_cast<int64_t>(i));
      }
      EXPECT_TRUE(engine_->Release(unit).ok());
    }
  }

  // One micro-batch in which every unit in `units` (all, if empty) reports.
  void MicroBatch(const GradientFunction& gradient, bool last = true,
                  const std::vector<UnitId>& units = {}) {
    ASSERT_TRUE(engine_->BeginMicroBatch(1.0, last).ok());
    for (UnitId unit = UnitCount() - 1; unit >= 0; --unit) {
      if (!units.empty() && std::find(units.begin(), units.end(), unit) == units.end()) continue;
      ASSERT_TRUE(engine_->Acquire(unit, AcquireMode::kBackward).ok());
      for (const ParameterId id : ParametersOf(unit)) {
        if (!parameters_[id].frozen) gradient(id, Values(id), Gradient(id));
      }
      ASSERT_TRUE(engine_->GradReady(unit).ok());
      ASSERT_TRUE(engine_->Release(unit).ok());
    }
  }

  StepStats Step() {
    StatusOr<StepStats> stats = engine_->Step();
    EXPECT_TRUE(stats.ok()) << stats.status();
    return stats.ok() ? *stats : StepStats();
  }

  std::vector<float> Read(ParameterId id, StateKind state = StateKind::kMaster) {
    std::vector<float> out(engine_->Parameter(id).elems);
    const Status status = engine_->Read(id, state, 0, out);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
  std::vector<float> ReadAll(StateKind state = StateKind::kMaster) {
    std::vector<float> all;
    for (size_t id = 0; id < parameters_.size(); ++id) {
      const std::vector<float> one = Read(static_cast<ParameterId>(id), state);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  std::span<float> Values(ParameterId id) { return Floats(engine_->Parameter(id)); }
  std::span<float> Gradient(ParameterId id) { return Floats(engine_->Gradient(id)); }
  Engine& engine() { return *engine_; }

 private:
  static std::span<float> Floats(const TensorView& view) {
    return {static_cast<float*>(view.data), static_cast<size_t>(view.elems)};
  }
  UnitId UnitCount() const { return static_cast<UnitId>(units_.size()); }
  std::vector<ParameterId> ParametersOf(UnitId unit) const {
    std::vector<ParameterId> ids;
    for (const std::string& name : units_[unit].parameters) {
      for (size_t id = 0; id < parameters_.size(); ++id) {
        if (parameters_[id].name == name) ids.push_back(static_cast<ParameterId>(id));
      }
    }
    return ids;
  }

  std::vector<UnitSpec> units_;
  std::vector<ParameterSpec> parameters_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace zerohold::testing
