// Puts the lists into text, so that a disagreement of ranks can be shown and not only noticed.
#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "src/layout/layout.h"

namespace zerohold::layout {
namespace {

// Escaped, so that no name can break its line or pass for another field.
std::string Quoted(const std::string& name) {
  return absl::StrCat("\"", absl::CEscape(name), "\"");
}

std::string QuotedList(const std::vector<std::string>& names) {
  return absl::StrJoin(names, " ", [](std::string* out, const std::string& name) {
    absl::StrAppend(out, Quoted(name));
  });
}

// Of the units `holders`, which parameters of any communicator may change: with the first unit that
// uses one of theirs, as Layout's first_touch has it.
std::vector<int64_t> ReductionOrder(std::vector<int64_t> holders, std::span<const UnitSpec> units) {
  std::unordered_map<std::string_view, int64_t> first_user;
  for (int64_t i = 0; i < std::ssize(units); ++i) {
    for (const std::string& name : units[i].uses) first_user.try_emplace(name, i);
  }
  const auto first_touch = [&](int64_t unit) {
    int64_t first = unit;
    for (const std::string& name : units[unit].parameters) {
      const auto user = first_user.find(name);
      if (user != first_user.end()) first = std::min(first, user->second);
    }
    return first;
  };
  std::ranges::reverse(holders);
  std::ranges::stable_sort(holders, std::ranges::greater(), first_touch);
  return holders;
}

}  // namespace

std::string Describe(std::span<const ParameterSpec> parameters, std::span<const UnitSpec> units,
                     int communicator) {
  std::string text;
  std::unordered_set<std::string_view> elsewhere;  // parameters of other communicators
  std::unordered_set<std::string_view> reduced;
  int number = 0;
  for (const ParameterSpec& p : parameters) {
    if (p.communicator != communicator) {
      elsewhere.insert(p.name);
      continue;
    }
    if (!p.frozen) reduced.insert(p.name);
    // %.17g: two weights that differ in the last bit differ here.
    absl::StrAppendFormat(
        &text, "parameter %d: %s [%s] %s group %d%s%s norm_weight %.17g mean_ranks %d\n", number++,
        Quoted(p.name), absl::StrJoin(p.shape, ", "), NameOf(p.dtype), p.group,
        p.frozen ? " frozen" : "", p.atomic ? " atomic" : "", p.norm_weight, p.mean_ranks);
  }
  number = 0;
  std::vector<int64_t> holders;
  for (const UnitSpec& unit : units) {
    const auto here = [&](const std::vector<std::string>& names) {
      std::vector<std::string> kept = names;
      std::erase_if(kept, [&](const std::string& name) { return elsewhere.contains(name); });
      return kept;
    };
    const std::vector<std::string> held = here(unit.parameters);
    const std::vector<std::string> used = here(unit.uses);
    if (held.empty() && used.empty() && !(unit.parameters.empty() && unit.uses.empty())) continue;
    absl::StrAppendFormat(&text, "unit %d: %s holds %s", number++, Quoted(unit.name),
                          held.empty() ? "nothing" : QuotedList(held));
    if (!used.empty()) absl::StrAppend(&text, " uses ", QuotedList(used));
    text += '\n';
    const bool holds =
        std::ranges::any_of(held, [&](const std::string& name) { return reduced.contains(name); });
    if (holds) holders.push_back(&unit - units.data());
  }
  const std::vector<int64_t> order = ReductionOrder(holders, units);
  if (std::ranges::is_sorted(order, std::ranges::greater())) return text;
  text += "reduced in the order";
  for (const int64_t unit : order) absl::StrAppend(&text, " ", Quoted(units[unit].name));
  return text + '\n';
}

}  // namespace zerohold::layout
