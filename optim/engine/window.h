// The trainer's calls between two steps, checked: which units are acquired, which have gradients,
// which may be reduced. A window is the micro-batches of one step.
//
// Knows no memory, thread or rank. Threads: one owner. A call that fails has changed nothing.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "zerohold/engine.h"
#include "zerohold/tensor.h"

namespace zerohold::engine {

class Window {
 public:
  // Requires: the layout has accepted the list.
  explicit Window(std::span<const UnitSpec> units);

  absl::Status BeginMicroBatch(bool last);
  // `to_zero` gets the units whose gradients start in this window: their pages are to be zeroed.
  absl::Status Acquire(UnitId unit, AcquireMode mode, std::vector<UnitId>* to_zero);
  // `written` is set when this ends a kWrite.
  absl::Status Release(UnitId unit, bool* written);
  // `ready` gets the units whose gradients are final for the window: in the last micro-batch, those
  // whose own report and whose users' reports are all in.
  absl::Status GradReady(UnitId unit, std::vector<UnitId>* ready);

  // What Step needs: a micro-batch, and a report of every unit that was acquired for backward.
  absl::Status CheckStep() const;
  // Some report of this window says that the unit, or a parameter of it that another uses, has a
  // gradient.
  bool Present(UnitId unit) const { return states_[unit].present; }
  bool Zeroed(UnitId unit) const { return states_[unit].zeroed; }
  int64_t micro_batches() const { return micro_batches_; }
  bool Acquired(UnitId unit) const { return states_[unit].acquired > 0; }

  // The step is over, whatever came of it.
  void Reset();

 private:
  struct State {
    int acquired = 0;  // nesting
    bool writing = false;
    bool zeroed = false;    // in this window
    bool present = false;   // in this window
    bool backward = false;  // acquired for it in this micro-batch
    bool reported = false;  // in this micro-batch
    int reports_left = 0;   // own and users', in this micro-batch
  };

  absl::Status CheckUnit(UnitId unit, const char* call) const;
  absl::Status CheckReports(const char* call) const;

  std::vector<std::string> names_;
  std::vector<std::vector<UnitId>> touches_;  // itself, then the owners of the parameters it uses
  std::vector<int> reporters_;                // units that touch this one
  std::vector<State> states_;
  int64_t micro_batches_ = 0;
  bool last_ = false;
};

}  // namespace zerohold::engine
