// A trainer of a few lines: gives each parameter the gradient that a function says, and steps.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/base/convert.h"
#include "zerohold/engine.h"

namespace zerohold::testing {

struct ModelSpec {
  std::vector<ParameterSpec> parameters;
  std::vector<UnitSpec> units;
};

// One unit with a tensor of each size, "a", "b", ...
inline ModelSpec Tensors(const std::vector<int64_t>& sizes) {
  ModelSpec model{{}, {{"all", {}, {}}}};
  for (size_t i = 0; i < sizes.size(); ++i) {
    model.parameters.push_back({std::string(1, static_cast<char>('a' + i)), {sizes[i]}});
    model.units[0].parameters.push_back(model.parameters[i].name);
  }
  return model;
}

// The same, each in a unit of its own.
inline ModelSpec TensorsInUnits(const std::vector<int64_t>& sizes) {
  ModelSpec model = Tensors(sizes);
  model.units.clear();
  for (const ParameterSpec& spec : model.parameters) {
    model.units.push_back({"unit_" + spec.name, {spec.name}, {}});
  }
  return model;
}

// The value of an element of a parameter.
using ValueFunction = std::function<float(ParameterId, int64_t)>;
inline ValueFunction Constant(float value) {
  return [value](ParameterId, int64_t) { return value; };
}

// Adds this rank's gradient of one micro-batch to `gradient`; `values` are the parameter's.
using GradientFunction =
    std::function<void(ParameterId, std::span<const float> values, std::span<float> gradient)>;

// Adds `all[parameter]`, one number for all its elements or one for each.
inline GradientFunction Gradients(std::vector<std::vector<float>> all) {
  return [all = std::move(all)](ParameterId id, std::span<const float>, std::span<float> gradient) {
    const std::vector<float>& mine = all[id];
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] += mine[mine.size() == 1 ? 0 : i];
  };
}

class Trainer {
 public:
  // Every value of every parameter starts as first(parameter, element).
  Trainer(const EngineOptions& options, Communicator communicator,
          std::vector<ParameterSpec> parameters, std::vector<UnitSpec> units,
          const ValueFunction& first)
      : Trainer(options, std::vector{std::move(communicator)},
                ModelSpec{std::move(parameters), std::move(units)}, first) {}
  Trainer(const EngineOptions& options, std::vector<Communicator> communicators, ModelSpec model,
          const ValueFunction& first)
      : units_(std::move(model.units)), parameters_(std::move(model.parameters)) {
    auto engine = Engine::Create(options, std::move(communicators), parameters_, units_);
    EXPECT_TRUE(engine.ok()) << engine.status();
    if (!engine.ok()) return;
    engine_ = *std::move(engine);
    for (UnitId unit = 0; unit < UnitCount(); ++unit) WriteUnit(unit, first);
  }
  Trainer(const EngineOptions& options, Communicator communicator, ModelSpec model,
          const ValueFunction& first)
      : Trainer(options, std::move(communicator), std::move(model.parameters),
                std::move(model.units), first) {}

  void WriteUnit(UnitId unit, const ValueFunction& value) {
    ASSERT_TRUE(engine_->Acquire(unit, AcquireMode::kWrite).ok());
    for (const ParameterId id : ParametersOf(unit)) {
      const TensorView view = engine_->Parameter(id);
      for (int64_t i = 0; i < view.elems; ++i) Put(view, i, value(id, i));
    }
    ASSERT_TRUE(engine_->Release(unit).ok());
  }

  // Adds to the model between two steps; new values start as the first ones.
  Status AddUnits(const ModelSpec& more, const ValueFunction& first,
                  std::vector<GroupOptions> groups = {}) {
    const Status status = engine_->AddUnits(more.parameters, more.units, std::move(groups));
    if (!status.ok()) return status;
    parameters_.insert(parameters_.end(), more.parameters.begin(), more.parameters.end());
    units_.insert(units_.end(), more.units.begin(), more.units.end());
    const auto known = UnitCount() - static_cast<UnitId>(more.units.size());
    for (UnitId unit = known; unit < UnitCount(); ++unit) WriteUnit(unit, first);
    return status;
  }

  // One micro-batch in which every unit in `units` (all, if empty) reports.
  void MicroBatch(const GradientFunction& gradient, bool last = true,
                  const std::vector<UnitId>& units = {}) {
    ASSERT_TRUE(engine_->BeginMicroBatch(1.0, last).ok());
    for (UnitId unit = UnitCount() - 1; unit >= 0; --unit) {
      if (units.empty() || std::find(units.begin(), units.end(), unit) != units.end()) {
        Backward(unit, gradient);
      }
    }
  }
  // One unit's part of a micro-batch.
  void Backward(UnitId unit, const GradientFunction& gradient) {
    const Status status = TryBackward(unit, gradient);
    ASSERT_TRUE(status.ok()) << status;
  }
  Status TryBackward(UnitId unit, const GradientFunction& gradient) {
    Status status = engine_->Acquire(unit, AcquireMode::kBackward);
    if (!status.ok()) return status;
    for (const ParameterId id : ParametersOf(unit)) {
      if (!parameters_[id].frozen) AddGradient(id, gradient);
    }
    status = engine_->GradReady(unit);
    if (status.ok()) status = engine_->Release(unit);
    return status;
  }

  StepStats Step() {
    StatusOr<StepStats> stats = engine_->Step();
    EXPECT_TRUE(stats.ok()) << stats.status();
    return stats.ok() ? *stats : StepStats();
  }
  // A step of one micro-batch.
  StepStats Step(const GradientFunction& gradient, const std::vector<UnitId>& units = {}) {
    MicroBatch(gradient, true, units);
    return Step();
  }

  // The same, and the first status that is not OK, of whichever call: a peer may be gone.
  StatusOr<StepStats> TryStep(const GradientFunction& gradient) {
    Status status = engine_->BeginMicroBatch();
    for (UnitId unit = UnitCount() - 1; unit >= 0 && status.ok(); --unit) {
      status = TryBackward(unit, gradient);
    }
    if (!status.ok()) return status;
    return engine_->Step();
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
  // Masters, first moments and second moments. Requires: no frozen parameter.
  std::vector<float> ReadStates() {
    std::vector<float> all;
    for (const StateKind state : {StateKind::kMaster, StateKind::kMoment1, StateKind::kMoment2}) {
      const std::vector<float> one = ReadAll(state);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }

  std::span<float> Values(ParameterId id) { return Floats(engine_->Parameter(id)); }
  std::span<float> Gradient(ParameterId id) { return Floats(engine_->Gradient(id)); }
  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }

  // One element, widened, and rounded to nearest.
  static float Get(const TensorView& view, int64_t i) {
    if (view.dtype == DType::kFloat32) return static_cast<const float*>(view.data)[i];
    const uint16_t bits = static_cast<const uint16_t*>(view.data)[i];
    return view.dtype == DType::kBFloat16 ? base::BFloat16ToFloat(bits)
                                          : base::Float16ToFloat(bits);
  }
  static void Put(const TensorView& view, int64_t i, float value) {
    if (view.dtype == DType::kFloat32) {
      static_cast<float*>(view.data)[i] = value;
    } else {
      static_cast<uint16_t*>(view.data)[i] = view.dtype == DType::kBFloat16
                                                 ? base::FloatToBFloat16(value)
                                                 : base::FloatToFloat16(value);
    }
  }

 private:
  void AddGradient(ParameterId id, const GradientFunction& gradient) {
    const TensorView parameter = engine_->Parameter(id);
    const TensorView target = engine_->Gradient(id);
    std::vector<float> values(parameter.elems);
    std::vector<float> sums(parameter.elems);
    for (int64_t i = 0; i < parameter.elems; ++i) {
      values[i] = Get(parameter, i);
      sums[i] = Get(target, i);
    }
    gradient(id, values, sums);
    for (int64_t i = 0; i < parameter.elems; ++i) Put(target, i, sums[i]);
  }

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
