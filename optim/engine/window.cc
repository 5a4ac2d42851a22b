// The rules of the calls between two steps.
#include "optim/engine/window.h"

#include <absl/container/flat_hash_map.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace zerohold::engine {

Window::Window(std::span<const UnitSpec> units, std::vector<bool> fresh_each_micro_batch)
    : fresh_each_micro_batch_(std::move(fresh_each_micro_batch)),
      touches_(units.size()),
      reporters_(units.size(), 0),
      states_(units.size()) {
  absl::flat_hash_map<std::string, UnitId> owner;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    names_.push_back(units[unit].name);
    for (const std::string& name : units[unit].parameters) owner[name] = static_cast<UnitId>(unit);
  }
  for (size_t unit = 0; unit < units.size(); ++unit) {
    std::vector<UnitId>& touched = touches_[unit];
    touched.push_back(static_cast<UnitId>(unit));
    for (const std::string& name : units[unit].uses) {
      const UnitId other = owner.at(name);
      if (std::find(touched.begin(), touched.end(), other) == touched.end())
        touched.push_back(other);
    }
    for (const UnitId other : touched) ++reporters_[other];
  }
}

absl::Status Window::CheckUnit(UnitId unit, const char* call) const {
  if (unit >= 0 && unit < static_cast<UnitId>(states_.size())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(call, ": unit ", unit, " does not exist; there are ", states_.size(), " units"));
}

absl::Status Window::CheckReports(const char* call) const {
  for (size_t unit = 0; unit < states_.size(); ++unit) {
    if (states_[unit].backward && !states_[unit].reported) {
      return absl::FailedPreconditionError(
          absl::StrCat(call, ": unit ", names_[unit],
                       " was acquired for backward in this micro-batch but never reported; call "
                       "GradReady for it"));
    }
  }
  return absl::OkStatus();
}

absl::Status Window::CheckBegin() const {
  if (last_) {
    return absl::FailedPreconditionError(
        "BeginMicroBatch: the last micro-batch of this step is open; call Step first, or give "
        "last = false to all micro-batches of a step but its last");
  }
  for (size_t unit = 0; unit < states_.size(); ++unit) {
    if (states_[unit].writing) {
      return absl::FailedPreconditionError(absl::StrCat(
          "BeginMicroBatch: unit ", names_[unit], " is acquired for writing; Release it first"));
    }
  }
  return CheckReports("BeginMicroBatch");
}

void Window::BeginMicroBatch(bool last) {
  ZH_CHECK(!last_, micro_batches_);
  for (size_t unit = 0; unit < states_.size(); ++unit) {
    State& state = states_[unit];
    state.backward = state.reported = state.absent = state.waiting = false;
    if (fresh_each_micro_batch_[unit]) state.begun = false;
    state.reports_left = reporters_[unit];
    state.promises = 0;
  }
  ++micro_batches_;
  last_ = last;
}

absl::Status Window::CheckAcquire(UnitId unit, AcquireMode mode,
                                  std::vector<UnitId>* begins) const {
  ZH_RETURN_IF_ERROR(CheckUnit(unit, "Acquire"));
  if (mode > AcquireMode::kWrite) {
    return absl::InvalidArgumentError(
        absl::StrCat("Acquire of unit ", names_[unit], ": mode is ", static_cast<int>(mode),
                     "; give kForward (0), kBackward (1), kEvaluate (2) or kWrite (3)"));
  }
  if (mode == AcquireMode::kWrite && micro_batches_ > 0) {
    return absl::FailedPreconditionError(absl::StrCat("Acquire(kWrite) of unit ", names_[unit],
                                                      ": a micro-batch is open; call Step first"));
  }
  if (mode != AcquireMode::kBackward) return absl::OkStatus();
  const State& state = states_[unit];
  const auto refuse = [&](const char* why) {
    return absl::FailedPreconditionError(
        absl::StrCat("Acquire(kBackward) of unit ", names_[unit], ": ", why));
  };
  if (micro_batches_ == 0) return refuse("no micro-batch is open; call BeginMicroBatch");
  if (state.reported) {
    return refuse("it has reported its gradients already; call BeginMicroBatch or Step first");
  }
  for (const UnitId touched : touches_[unit]) {
    if (states_[touched].absent) {
      return refuse(
          "its turn to be reduced has passed and it counts as absent; list units in forward order, "
          "or raise max_live_gradients_bytes");
    }
    if (!states_[touched].begun) begins->push_back(touched);
  }
  return absl::OkStatus();
}

void Window::Acquire(UnitId unit, AcquireMode mode) {
  State& state = states_[unit];
  ++state.acquired;
  if (mode == AcquireMode::kWrite) state.writing = true;
  if (mode != AcquireMode::kBackward) return;
  const bool promises = !std::exchange(state.backward, true);
  for (const UnitId touched : touches_[unit]) {
    states_[touched].begun = true;
    if (promises) ++states_[touched].promises;
  }
}

absl::Status Window::Release(UnitId unit, bool* written) {
  ZH_RETURN_IF_ERROR(CheckUnit(unit, "Release"));
  State& state = states_[unit];
  if (state.acquired == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("Release: unit ", names_[unit],
                     " is not acquired; call it once for each Acquire of the unit"));
  }
  --state.acquired;
  *written = state.acquired == 0 && state.writing;
  if (*written) state.writing = false;
  return absl::OkStatus();
}

UnitId Window::FirstHolding(UnitId unit) const {
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i].acquired > 0 && std::ranges::count(touches_[i], unit) > 0) {
      return static_cast<UnitId>(i);
    }
  }
  return -1;
}

UnitId Window::FirstAcquired() const {
  const auto found =
      std::ranges::find_if(states_, [](const State& state) { return state.acquired > 0; });
  return found == states_.end() ? -1 : static_cast<UnitId>(found - states_.begin());
}

absl::Status Window::CheckUnreported(UnitId unit, const char* call) const {
  ZH_RETURN_IF_ERROR(CheckUnit(unit, call));
  if (!states_[unit].reported) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(call, ": unit ", names_[unit],
                   " has reported already in this micro-batch; call GradReady, after the last "
                   "gradient, or GradAbsent once in each"));
}

absl::Status Window::GradReady(UnitId unit, std::vector<UnitId>* ready) {
  ZH_RETURN_IF_ERROR(CheckUnreported(unit, "GradReady"));
  if (!states_[unit].backward) {
    return absl::FailedPreconditionError(
        absl::StrCat("GradReady: unit ", names_[unit],
                     " was not acquired for backward in this micro-batch; call Acquire(kBackward) "
                     "first"));
  }
  Report(unit, true, ready);
  return absl::OkStatus();
}

absl::Status Window::GradAbsent(UnitId unit, std::vector<UnitId>* ready) {
  ZH_RETURN_IF_ERROR(CheckUnreported(unit, "GradAbsent"));
  const auto refuse = [&](const char* why) {
    return absl::FailedPreconditionError(
        absl::StrCat("GradAbsent of unit ", names_[unit], ": ", why));
  };
  if (micro_batches_ == 0) return refuse("no micro-batch is open; call BeginMicroBatch");
  if (states_[unit].backward) {
    return refuse("it was acquired for backward in this micro-batch; call GradReady");
  }
  Report(unit, false, ready);
  return absl::OkStatus();
}

void Window::Report(UnitId unit, bool present, std::vector<UnitId>* ready) {
  states_[unit].reported = true;
  for (const UnitId touched : touches_[unit]) {
    State& other = states_[touched];
    other.present |= present;
    if (states_[unit].backward) --other.promises;
    other.waiting = --other.reports_left > 0;
    if (!other.waiting) ready->push_back(touched);
  }
}

void Window::CloseMicroBatch(std::vector<UnitId>* ready) {
  for (size_t unit = 0; unit < states_.size(); ++unit) {
    if (states_[unit].waiting) ready->push_back(static_cast<UnitId>(unit));
    states_[unit].waiting = false;
  }
}

absl::Status Window::CheckStep() const {
  if (micro_batches_ == 0) {
    return absl::FailedPreconditionError(
        "Step: no micro-batch was begun; call BeginMicroBatch, and GradReady for the units that "
        "have gradients");
  }
  return CheckReports("Step");
}

void Window::Reset() {
  for (State& state : states_) {
    state.present = state.begun = state.backward = state.reported = false;
    state.absent = state.waiting = false;
    state.promises = 0;
  }
  micro_batches_ = 0;
  last_ = false;
}

}  // namespace zerohold::engine
