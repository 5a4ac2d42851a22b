// Puts the lists into text, so that a disagreement of ranks can be shown and not only noticed.
#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

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

}  // namespace

std::string Describe(std::span<const ParameterSpec> parameters, std::span<const UnitSpec> units) {
  std::string text;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParameterSpec& p = parameters[i];
    // %.17g: two weights that differ in the last bit differ here.
    absl::StrAppendFormat(&text,
                          "parameter %d: %s [%s] %s group %d%s norm_weight %.17g communicator %d\n",
                          i, Quoted(p.name), absl::StrJoin(p.shape, ", "), NameOf(p.dtype), p.group,
                          p.frozen ? " frozen" : "", p.norm_weight, p.communicator);
  }
  for (size_t i = 0; i < units.size(); ++i) {
    const UnitSpec& unit = units[i];
    absl::StrAppendFormat(&text, "unit %d: %s holds %s", i, Quoted(unit.name),
                          unit.parameters.empty() ? "nothing" : QuotedList(unit.parameters));
    if (!unit.uses.empty()) absl::StrAppend(&text, " uses ", QuotedList(unit.uses));
    text += '\n';
  }
  return text;
}

}  // namespace zerohold::layout
