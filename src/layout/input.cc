// Refuses lists that no layout could be made of, with the name of what is wrong and why.
#include "src/layout/input.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "src/base/status_macros.h"

namespace zerohold::layout {
namespace {

// Byte offsets of the whole model stay below it with every padding, so that no sum can overflow.
constexpr int64_t kMaxElems = int64_t{1} << 62;
constexpr int64_t kMaxBytes = int64_t{1} << 62;

using NameIndex = std::unordered_map<std::string_view, ParameterId>;

std::string Quoted(const char* what, const std::string& name) {
  return absl::StrCat(what, " \"", name, "\"");
}

absl::StatusOr<int64_t> CountElems(const ParameterSpec& parameter) {
  int64_t elems = 1;
  bool too_many = false;
  for (const int64_t extent : parameter.shape) {
    if (extent < 0) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted("parameter", parameter.name),
                                                     " has the negative extent ", extent,
                                                     "; give 0 or more"));
    }
    too_many |= __builtin_mul_overflow(elems, extent, &elems);
  }
  // An empty tensor is empty however large its other extents are.
  if (std::ranges::count(parameter.shape, 0) > 0) return 0;
  if (too_many || elems > kMaxElems) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted("parameter", parameter.name), " has more than 2^62 elements"));
  }
  return elems;
}

absl::Status CheckParameter(const ParameterSpec& parameter, int64_t index) {
  if (parameter.name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("parameter ", index, " has an empty name"));
  }
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted("parameter", parameter.name), " has ", why...));
  };
  if (parameter.dtype > DType::kFloat16) {
    return refuse("the unknown dtype ", static_cast<int>(parameter.dtype),
                  "; give kFloat32 (0), kBFloat16 (1) or kFloat16 (2)");
  }
  if (parameter.group < 0) {
    return refuse("the negative group ", parameter.group, "; give an index of options.groups");
  }
  if (parameter.communicator < 0) {
    return refuse("the negative communicator ", parameter.communicator,
                  "; give an index of Create's communicators");
  }
  if (parameter.mean_ranks < 0) {
    return refuse("the negative mean_ranks ", parameter.mean_ranks,
                  "; give 0 (all that reduce it) or more");
  }
  if (!(parameter.norm_weight > 0) || !std::isfinite(parameter.norm_weight)) {
    return refuse("norm_weight ", parameter.norm_weight, "; it is finite and > 0");
  }
  return absl::OkStatus();
}

absl::StatusOr<NameIndex> CheckParameters(std::span<const ParameterSpec> parameters,
                                          std::vector<int64_t>& elems) {
  NameIndex ids;
  ids.reserve(parameters.size());
  elems.reserve(parameters.size());
  int64_t left_bytes = kMaxBytes;
  for (const ParameterSpec& parameter : parameters) {
    const auto id = static_cast<ParameterId>(elems.size());
    ZH_RETURN_IF_ERROR(CheckParameter(parameter, id));
    if (!ids.emplace(parameter.name, id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted("parameter", parameter.name), " is listed twice"));
    }
    ZH_ASSIGN_OR_RETURN(elems.emplace_back(), CountElems(parameter));
    if (elems[id] > left_bytes / SizeOf(parameter.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat("with ", Quoted("parameter", parameter.name),
                                                     " the model has more than 2^62 bytes"));
    }
    left_bytes -= elems[id] * SizeOf(parameter.dtype);
  }
  return ids;
}

// Requires: owner[id] is -1 for parameters that no unit before this one listed.
absl::StatusOr<std::vector<ParameterId>> TakeParameters(std::span<const UnitSpec> units,
                                                        UnitId unit, const NameIndex& ids,
                                                        std::vector<UnitId>& owner) {
  std::vector<ParameterId> taken;
  taken.reserve(units[unit].parameters.size());
  for (const std::string& name : units[unit].parameters) {
    const auto found = ids.find(name);
    if (found == ids.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          Quoted("unit", units[unit].name), " lists the unknown ", Quoted("parameter", name),
          "; give it a ParameterSpec, or take it off the list"));
    }
    UnitId& holder = owner[found->second];
    if (holder == unit) {
      return absl::InvalidArgumentError(absl::StrCat(Quoted("unit", units[unit].name), " lists ",
                                                     Quoted("parameter", name), " twice"));
    }
    if (holder >= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted("parameter", name), " is in ", Quoted("unit", units[holder].name),
                       " and in ", Quoted("unit", units[unit].name), "; let one of them use it"));
    }
    holder = unit;
    taken.push_back(found->second);
  }
  return taken;
}

absl::StatusOr<std::vector<ParameterId>> FindUsed(const UnitSpec& spec, UnitId unit,
                                                  const NameIndex& ids,
                                                  const std::vector<UnitId>& owner) {
  std::vector<ParameterId> used;
  std::unordered_set<std::string_view> seen;
  for (const std::string& name : spec.uses) {
    const auto found = ids.find(name);
    const char* why = found == ids.end()             ? "the unknown "
                      : owner[found->second] == unit ? "its own "
                      : !seen.insert(name).second    ? "twice the "
                                                     : nullptr;
    if (why != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted("unit", spec.name), " uses ", why, Quoted("parameter", name)));
    }
    used.push_back(found->second);
  }
  return used;
}

}  // namespace

absl::StatusOr<CheckedInput> CheckInput(std::span<const ParameterSpec> parameters,
                                        std::span<const UnitSpec> units) {
  CheckedInput input;
  ZH_ASSIGN_OR_RETURN(const NameIndex ids, CheckParameters(parameters, input.elems));
  std::vector<UnitId> owner(parameters.size(), -1);
  std::unordered_set<std::string_view> names;
  for (UnitId unit = 0; unit < static_cast<UnitId>(units.size()); ++unit) {
    const UnitSpec& spec = units[unit];
    if (spec.name.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("unit ", unit, " has an empty name"));
    }
    if (!names.insert(spec.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(Quoted("unit", spec.name), " is listed twice"));
    }
    ZH_ASSIGN_OR_RETURN(input.units.emplace_back(), TakeParameters(units, unit, ids, owner));
  }
  const auto homeless = std::ranges::find(owner, -1);
  if (homeless != owner.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat(Quoted("parameter", parameters[homeless - owner.begin()].name),
                     " is in no unit; list it in the one that computes with it"));
  }
  for (UnitId unit = 0; unit < static_cast<UnitId>(units.size()); ++unit) {
    ZH_ASSIGN_OR_RETURN(input.uses.emplace_back(), FindUsed(units[unit], unit, ids, owner));
  }
  return input;
}

}  // namespace zerohold::layout
