#include "optim/engine/frame_sizes.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "optim/engine/window.h"
#include "src/base/align.h"
#include "src/base/status_macros.h"

namespace zerohold::engine {
namespace {

// Frames of one kind, bytes.
struct Need {
  std::vector<int64_t> of_units;  // each with the units that it uses
  int64_t all = 0;                // of all units at once
  int64_t largest = 0;            // unit by itself
  int64_t used = 0;               // by another, the most

  int64_t Least() const { return of_units.empty() ? 0 : std::ranges::max(of_units); }
};

struct Needs {
  Needs(const layout::Layout& layout, std::span<const UnitSpec> units) {
    const auto add = [](Need& need, bool framed, int64_t bytes, bool by_another) {
      if (!framed) return;
      need.of_units.back() += bytes;
      if (by_another) need.used = std::max(need.used, bytes);
    };
    const Window window(units, std::vector<bool>(units.size(), false));
    for (UnitId i = 0; i < static_cast<UnitId>(units.size()); ++i) {
      for (Need* need : {&parameters, &gradients}) need->of_units.push_back(0);
      for (const UnitId touched : window.Touched(i)) {
        const layout::UnitPlace& unit = layout.units()[touched];
        add(parameters, unit.parameters_framed, unit.parameter_bytes.size(), touched != i);
        add(gradients, unit.gradients_framed, unit.gradient_bytes.size(), touched != i);
      }
    }
    for (const layout::UnitPlace& unit : layout.units()) {
      if (unit.parameters_framed) parameters.all += unit.parameter_bytes.size();
      if (unit.gradients_framed) gradients.all += unit.gradient_bytes.size();
    }
    parameters.largest = layout.max_framed_parameter_bytes();
    gradients.largest = layout.max_framed_gradient_bytes();
    for (const layout::ArenaSizes& arena : layout.arenas()) {
      resident += arena.resident_parameter_bytes + arena.resident_gradient_bytes;
    }
  }
  int64_t All() const { return resident + parameters.all + gradients.all; }

  Need parameters;
  Need gradients;
  int64_t resident = 0;  // what stays
};

// More than all may be given: tied units, and what is asked, may take it.
int64_t DeviceBytes(const Budget& budget, const Needs& needs) {
  const int64_t part = Budget::Fraction(budget.fraction).Of(needs.All());
  return part + std::min(budget.bytes, std::numeric_limits<int64_t>::max() - part);
}

// From the least to the most that frames of one kind may take.
struct Bounds {
  int64_t least;
  int64_t most;
};

// What is asked, up to twice what all units take: that holds them in any order of coming and going.
// Else two of the largest, so that one comes while the other is used; what a unit uses may lie in
// the middle for long, so that there must be room for a unit on either side. With `fill` what the
// device has room for, up to all units, from one on where none uses another.
Bounds BoundsOf(int64_t asked, const Need& need, bool fill, int64_t before) {
  if (need.largest == 0) return {before, before};
  const int64_t beside = need.Least() > need.largest ? need.Least() : need.used;
  const int64_t alone = fill && need.used == 0 ? need.largest : 2 * need.largest + beside;
  const int64_t wanted = asked > 0 ? std::min(asked, 2 * need.all) : alone;
  const int64_t least = std::max(wanted / base::kFrameBytes * base::kFrameBytes, before);
  return {least, asked == 0 && fill ? std::max(least, need.all) : least};
}

}  // namespace

FrameSizes SizeFrames(const EngineOptions& options, const layout::Layout& layout,
                      std::span<const UnitSpec> units, const FrameSizes& before) {
  const Needs needs(layout, units);
  const bool fill = options.device_budget != Budget::All();
  const Bounds parameters =
      BoundsOf(options.max_live_parameters_bytes, needs.parameters, fill, before.parameters);
  const Bounds gradients =
      BoundsOf(options.max_live_gradients_bytes, needs.gradients, fill, before.gradients);
  const int64_t both = std::max<int64_t>(parameters.most + gradients.most, 1);
  const int64_t room = std::min(DeviceBytes(options.device_budget, needs) - needs.resident, both);
  const auto clamp = [](int64_t bytes, const Bounds& bounds) {
    return std::clamp(bytes / base::kFrameBytes * base::kFrameBytes, bounds.least, bounds.most);
  };
  // In proportion to what there is of each, the least of both first.
  const auto share = static_cast<int64_t>(
      static_cast<double>(room) * static_cast<double>(parameters.most) / static_cast<double>(both));
  FrameSizes sizes;
  sizes.parameters = clamp(std::min(share, room - gradients.least), parameters);
  sizes.gradients = clamp(room - sizes.parameters, gradients);
  return sizes;
}

absl::Status CheckFrames(const EngineOptions& options, const layout::Layout& layout,
                         std::span<const UnitSpec> units, const FrameSizes& sizes) {
  const Needs needs(layout, units);
  // Of all units the one that needs most, so that what is told to give is enough.
  const auto check = [&](const char* option, int64_t given, int64_t room,
                         const std::vector<int64_t>& of_units) -> absl::Status {
    const auto most = std::ranges::max_element(of_units);
    if (most == of_units.end() || *most <= room) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        option, " is ", given, ", but unit ", units[most - of_units.begin()].name, " needs ", *most,
        " bytes, with units that it uses, in frames of 2 MiB; give at least that, or 0"));
  };
  ZH_RETURN_IF_ERROR(check("max_live_parameters_bytes", options.max_live_parameters_bytes,
                           sizes.parameters, needs.parameters.of_units));
  ZH_RETURN_IF_ERROR(check("max_live_gradients_bytes", options.max_live_gradients_bytes,
                           sizes.gradients, needs.gradients.of_units));
  const int64_t budget = DeviceBytes(options.device_budget, needs);
  const int64_t frames = sizes.parameters + sizes.gradients;
  if (options.device_budget == Budget::All() || needs.resident + frames <= budget) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat(
      "device_budget is ", budget, " bytes, but parameters and gradients that stay take ",
      needs.resident, " and frames ", frames,
      "; give at least the sum, or a higher zero_stage, smaller units, or less "
      "max_live_parameters_bytes and max_live_gradients_bytes"));
}

}  // namespace zerohold::engine
