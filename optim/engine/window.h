// The trainer's calls between two steps, checked: which units are acquired, which have gradients,
// which may be reduced. A window is the micro-batches of one step.
//
// Knows no memory, thread or rank. Threads: one owner. A call that fails has changed nothing.
#pragma once

#include <absl/status/status.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zerohold/engine.h"
#include "zerohold/tensor.h"

namespace zerohold::engine {

class Window {
 public:
  // Requires: the layout has accepted the list. `fresh_each_micro_batch`: units whose gradient
  // memory begins anew in every micro-batch; the others' begins once in a window.
  Window(std::span<const UnitSpec> units, std::vector<bool> fresh_each_micro_batch);

  // Whether a micro-batch may begin; changes nothing.
  absl::Status CheckBegin() const;
  // `last`: none begins after it before Reset. Requires: CheckBegin.
  void BeginMicroBatch(bool last);
  // `begins` gets the units whose gradient memory begins with this acquire: it has to be there, and
  // zero. The check changes nothing; Acquire is for after it.
  absl::Status CheckAcquire(UnitId unit, AcquireMode mode, std::vector<UnitId>* begins) const;
  void Acquire(UnitId unit, AcquireMode mode);
  // `written` is set when this ends a kWrite.
  absl::Status Release(UnitId unit, bool* written);
  // `ready` gets the units whose gradients are final for this micro-batch: their own report and
  // their users' are all in.
  absl::Status GradReady(UnitId unit, std::vector<UnitId>* ready);
  // A report of nothing: the unit is not acquired for backward in this micro-batch.
  absl::Status GradAbsent(UnitId unit, std::vector<UnitId>* ready);
  // The micro-batch is over: `ready` gets the units with a report that still waited for others.
  void CloseMicroBatch(std::vector<UnitId>* ready);
  // The unit's turn to be reduced has passed: it takes part with what was reported, or as zero, and
  // what touches it is refused from now on in this micro-batch. Requires: not Promised.
  void CountAsAbsent(UnitId unit) { states_[unit].absent = true; }

  // A micro-batch was begun, and every unit that was acquired for backward in it has reported.
  absl::Status CheckStep() const;
  // Some report of this window says that the unit, or a parameter of it that another uses, has a
  // gradient.
  bool Present(UnitId unit) const { return states_[unit].present; }
  // Whether its next Release may adopt what the trainer wrote.
  bool Writing(UnitId unit) const {
    return unit >= 0 && unit < static_cast<UnitId>(states_.size()) && states_[unit].writing;
  }
  bool AnyPresent() const {
    return std::ranges::any_of(states_, [](const State& state) { return state.present; });
  }
  // The unit's gradient memory holds something of this window (of this micro-batch, where it begins
  // anew).
  bool Begun(UnitId unit) const { return states_[unit].begun; }
  // A unit that touches this one is acquired for backward and has not reported, in this
  // micro-batch.
  bool Promised(UnitId unit) const { return states_[unit].promises > 0; }
  // The first unit that is acquired, for whatever, and touches this one; -1 for none.
  UnitId FirstHolding(UnitId unit) const;
  // The first unit that is acquired, for whatever; -1 for none.
  UnitId FirstAcquired() const;
  int64_t micro_batches() const { return micro_batches_; }
  bool last() const { return last_; }
  // Itself, then the owners of the parameters that it uses.
  std::span<const UnitId> Touched(UnitId unit) const { return touches_[unit]; }

  // The step is over, whatever came of it.
  void Reset();

 private:
  struct State {
    int acquired = 0;  // nesting
    bool writing = false;
    bool present = false;   // in this window
    bool begun = false;     // see Begun
    bool backward = false;  // acquired for it in this micro-batch
    bool reported = false;  // in this micro-batch
    bool absent = false;    // see CountAsAbsent
    bool waiting = false;   // some reports of this micro-batch are in, not all
    int reports_left = 0;   // own and users', in this micro-batch
    int promises = 0;       // see Promised
  };

  absl::Status CheckUnit(UnitId unit, const char* call) const;
  absl::Status CheckReports(const char* call) const;
  absl::Status CheckUnreported(UnitId unit, const char* call) const;
  void Report(UnitId unit, bool present, std::vector<UnitId>* ready);

  std::vector<std::string> names_;
  std::vector<bool> fresh_each_micro_batch_;
  std::vector<std::vector<UnitId>> touches_;
  std::vector<int> reporters_;  // units that touch this one
  std::vector<State> states_;
  int64_t micro_batches_ = 0;
  bool last_ = false;
};

}  // namespace zerohold::engine
