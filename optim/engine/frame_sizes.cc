#include "optim/engine/frame_sizes.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>
#include <vector>

#include "optim/engine/window.h"
#include "src/base/align.h"
#include "src/base/status_macros.h"

namespace zerohold::engine {
namespace {

// Frames of one kind, bytes.
class Need {
 public:
  explicit Need(std::vector<int64_t> bytes) : of_units(bytes.size(), 0), bytes_(std::move(bytes)) {
    for (const int64_t unit : bytes_) {
      all += unit;
      largest = std::max(largest, unit);
    }
  }
  // While `unit` is used those `there` have frames; any that it touches may come for it, where
  // others were left out. One that comes needs a gap; the others may lie so that each gap between
  // them is a page too small.
  void Use(UnitId unit, std::span<const UnitId> there, std::span<const UnitId> touched) {
    int64_t sum = 0;
    int64_t pieces = 0;
    for (const UnitId other : there) {
      sum += bytes_[other];
      pieces += bytes_[other] > 0;
    }
    of_units[unit] = sum;
    for (const UnitId other : touched) {
      if (bytes_[other] == 0) continue;
      const int64_t gaps = (pieces - 1) * (bytes_[other] - base::kFrameBytes);
      of_units[unit] = std::max(of_units[unit], sum + gaps);
    }
  }
  // One unit after another, wherever lies what is there beside it.
  int64_t Least() const { return of_units.empty() ? 0 : std::ranges::max(of_units); }

  std::vector<int64_t> of_units;  // each with what is there beside it
  int64_t all = 0;                // of all units at once
  int64_t largest = 0;            // unit by itself

 private:
  std::vector<int64_t> bytes_;  // by unit, of it alone
};

struct Needs {
  Needs(const layout::Layout& layout, std::span<const UnitSpec> units)
      : parameters(BytesOf(layout, &layout::UnitPlace::parameters_framed,
                           &layout::UnitPlace::parameter_bytes)),
        gradients(BytesOf(layout, &layout::UnitPlace::gradients_framed,
                          &layout::UnitPlace::gradient_bytes)) {
    const Window window(units, std::vector<bool>(units.size(), false));
    std::vector<UnitId> begun;  // gradients that are not whole yet, as a backward pass has them
    for (auto unit = static_cast<UnitId>(units.size()) - 1; unit >= 0; --unit) {
      const std::span<const UnitId> touched = window.Touched(unit);
      parameters.Use(unit, touched, touched);
      std::ranges::copy_if(touched, std::back_inserter(begun),
                           [&](UnitId other) { return layout.units()[other].last_touch == unit; });
      gradients.Use(unit, begun, touched);
      std::erase_if(begun, [&](UnitId other) { return layout.units()[other].first_touch == unit; });
    }
    for (const layout::ArenaSizes& arena : layout.arenas()) {
      resident += arena.resident_parameter_bytes + arena.resident_gradient_bytes;
    }
  }
  int64_t All() const { return resident + parameters.all + gradients.all; }

  Need parameters;
  Need gradients;
  int64_t resident = 0;  // what stays

 private:
  static std::vector<int64_t> BytesOf(const layout::Layout& layout, bool layout::UnitPlace::*framed,
                                      layout::Range layout::UnitPlace::*bytes) {
    std::vector<int64_t> of_units;
    for (const layout::UnitPlace& unit : layout.units()) {
      of_units.push_back(unit.*framed ? (unit.*bytes).size() : 0);
    }
    return of_units;
  }
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

// What is asked, up to twice what all units take, or the least where that is more. Else the least,
// and the largest once more, so that one comes while the other is used. With `fill` what the device
// has room for, from the least on, up to all units.
Bounds BoundsOf(int64_t asked, const Need& need, bool fill, int64_t before) {
  const int64_t alone = fill ? need.Least() : need.Least() + need.largest;
  const int64_t wanted = asked > 0 ? std::min(asked, std::max(2 * need.all, need.Least())) : alone;
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
  // Of all units the one that needs most, the first that a backward pass comes to, so that what is
  // told to give is enough.
  const auto check = [&](const char* option, int64_t given, int64_t room, const Need& need,
                         const char* users) -> absl::Status {
    const auto most = std::max_element(need.of_units.rbegin(), need.of_units.rend());
    if (most == need.of_units.rend() || *most <= room) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        option, " is ", given, ", but unit ", units[need.of_units.rend() - most - 1].name,
        " needs ", *most, " bytes, with units that ", users,
        ", in frames of 2 MiB, each in one piece; give at least that, or 0"));
  };
  ZH_RETURN_IF_ERROR(check("max_live_parameters_bytes", options.max_live_parameters_bytes,
                           sizes.parameters, needs.parameters, "it uses"));
  ZH_RETURN_IF_ERROR(check("max_live_gradients_bytes", options.max_live_gradients_bytes,
                           sizes.gradients, needs.gradients, "it or an earlier one uses"));
  const int64_t budget = DeviceBytes(options.device_budget, needs);
  const int64_t frames = sizes.parameters + sizes.gradients;
  if (options.device_budget == Budget::All() || needs.resident + frames <= budget) {
    return absl::OkStatus();
  }
  const bool asked = options.max_live_parameters_bytes > 0 || options.max_live_gradients_bytes > 0;
  return absl::ResourceExhaustedError(absl::StrCat(
      "device_budget is ", budget, " bytes, but parameters and gradients that stay take ",
      needs.resident, " and frames ", frames, " (", sizes.parameters, " of parameters, ",
      sizes.gradients, " of gradients); give at least the sum",
      options.zero_stage < 3 ? ", or a higher zero_stage" : "",
      frames > 0 ? ", or smaller units" : "",
      asked ? ", or less max_live_parameters_bytes and max_live_gradients_bytes" : ""));
}

}  // namespace zerohold::engine
