// Room for units that come, at the cost of those that are needed last.
#include "optim/engine/residency.h"

#include <absl/strings/str_cat.h>

#include <limits>

#include "src/base/hash.h"

namespace zerohold::engine {

Residency::Residency(const layout::Layout& layout, std::span<const UnitSpec> units,
                     int64_t frame_bytes)
    : layout_(layout),
      units_(units),
      allocator_(frame_bytes),
      frame_bytes_(frame_bytes),
      states_(units.size()) {}

void Residency::InheritRoutes(const Residency& before) {
  training_ = before.training_;
  evaluation_ = before.evaluation_;
  route_ = before.route_ == &before.evaluation_ ? &evaluation_ : &training_;
}

// Units that stay count for the numbers of those behind them.
uint64_t Residency::HashOfNeeds() const {
  std::string text = absl::StrCat(frame_bytes_);
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    const layout::UnitPlace& place = layout_.units()[unit];
    absl::StrAppend(&text, "\n", place.parameters_framed ? place.parameter_bytes.size() : 0);
    for (const std::string& used : units_[unit].uses) absl::StrAppend(&text, " ", used);
  }
  return base::Hash(text);
}

void Residency::BeginPass(Pass pass) {
  route_ = pass == Pass::kEvaluation ? &evaluation_ : &training_;
  route_->BeginPass();
}

absl::Status Residency::Acquire(UnitId unit, Pass pass, std::vector<Gather>* gathers) {
  if (!Framed(unit)) return absl::OkStatus();
  // An evaluation pass has no call that begins it: it begins when its kind, or its first unit,
  // comes again.
  const bool evaluation = pass == Pass::kEvaluation;
  const bool begins = evaluation && route_->first() == unit;
  if (pass != Pass::kNone && (begins || evaluation != (route_ == &evaluation_))) BeginPass(pass);
  State& state = states_[unit];
  if (on_demand_) Invalidate(unit);
  if (!state.extent) {
    // An acquired unit is needed now: anything unpinned may go.
    state.extent = FindRoom(unit, -1);
    if (!state.extent) {
      std::string pinned;
      for (size_t other = 0; other < states_.size(); ++other) {
        if (states_[other].pins > 0)
          absl::StrAppend(&pinned, pinned.empty() ? "" : ", ", units_[other].name);
      }
      return absl::ResourceExhaustedError(absl::StrCat(
          "Acquire: unit ", units_[unit].name, " needs ",
          layout_.units()[unit].parameter_bytes.size(),
          " bytes, but max_live_parameters_bytes gives ", frame_bytes_,
          " (or device_budget does) and acquired units (", pinned.empty() ? "none" : pinned,
          ") hold theirs; release units, or raise the option"));
    }
    gathers->push_back({unit, *state.extent});
  }
  ++state.pins;
  state.last_use = ++clock_;
  if (pass != Pass::kNone) route_->Acquired(unit);
  return absl::OkStatus();
}

void Residency::Release(UnitId unit) {
  if (Framed(unit)) --states_[unit].pins;
}

void Residency::Prefetch(std::vector<Gather>* gathers) {
  for (int64_t ahead = 0; !on_demand_; ++ahead) {
    const UnitId unit = route_->Expected(ahead);
    if (unit < 0) return;
    State& state = states_[unit];
    if (state.extent) continue;
    state.extent = FindRoom(unit, ahead);
    if (!state.extent) return;
    gathers->push_back({unit, *state.extent});
  }
}

std::optional<memory::Extent> Residency::FindRoom(UnitId unit, int64_t distance) {
  const int64_t bytes = layout_.units()[unit].parameter_bytes.size();
  while (true) {
    if (std::optional<memory::Extent> extent = allocator_.Allocate(bytes)) return extent;
    const UnitId victim = Victim(distance);
    if (victim < 0) return std::nullopt;
    Drop(victim);
  }
}

UnitId Residency::Victim(int64_t distance) const {
  UnitId victim = -1;
  int64_t furthest = distance;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (!states_[i].extent || states_[i].pins > 0) continue;
    const auto unit = static_cast<UnitId>(i);
    const int64_t needed = route_->Distance(unit);
    const bool later = needed > furthest;
    // Of units that nobody expects, the one that was used longest ago.
    const bool staler =
        victim >= 0 && needed == furthest && states_[i].last_use < states_[victim].last_use;
    if (later || staler) {
      victim = unit;
      furthest = needed;
    }
  }
  return victim;
}

void Residency::Drop(UnitId unit) {
  allocator_.Free(*states_[unit].extent);
  states_[unit].extent.reset();
}

void Residency::Invalidate(UnitId unit) {
  if (states_[unit].extent && states_[unit].pins == 0) Drop(unit);
}

void Residency::InvalidateAll() {
  for (size_t unit = 0; unit < states_.size(); ++unit) Invalidate(static_cast<UnitId>(unit));
}

}  // namespace zerohold::engine
