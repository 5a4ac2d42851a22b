#include "src/base/units.h"

#include <absl/strings/str_cat.h>
#include <strings.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

namespace zerohold::base {
namespace {

struct Unit {
  const char* name;
  int64_t bytes;
};

constexpr Unit kUnits[] = {
    {"", 1},
    {"B", 1},
    {"KB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
    {"KiB", int64_t{1} << 10},
    {"MiB", int64_t{1} << 20},
    {"GiB", int64_t{1} << 30},
    {"TiB", int64_t{1} << 40},
};

absl::Status Wrong(const std::string& text, const char* what) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is not a number of bytes: ", what));
}

}  // namespace

std::string FormatBytes(int64_t bytes) {
  static constexpr const char* kNames[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  int power = 0;
  // The border is where one decimal would round up to 1024.0.
  while (std::fabs(value) >= (power == 0 ? 1024.0 : 1023.95)) {
    value /= 1024.0;
    ++power;
  }
  const double tenths = std::round(value * 10.0);
  char text[32];
  std::snprintf(text, sizeof text, std::fmod(tenths, 10.0) == 0.0 ? "%.0f %s" : "%.1f %s",
                tenths / 10.0, kNames[power]);
  return text;
}

absl::StatusOr<int64_t> ParseBytes(const std::string& text) {
  // from_chars would also take a sign, "inf" and "nan". long double holds every int64 exactly.
  if (text.empty() || !(text[0] == '.' || (text[0] >= '0' && text[0] <= '9'))) {
    return Wrong(text, "it does not begin with a digit");
  }
  long double number = 0.0L;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc{}) return Wrong(text, "no number");
  const char* name = rest;
  while (name != end && *name == ' ') ++name;
  const std::string unit_name(name, end);
  for (const Unit& unit : kUnits) {
    if (strcasecmp(unit.name, unit_name.c_str()) != 0) continue;
    const long double bytes = number * static_cast<long double>(unit.bytes);
    if (bytes > static_cast<long double>(std::numeric_limits<int64_t>::max())) {
      return Wrong(text, "it is more than 2^63 - 1");
    }
    return static_cast<int64_t>(bytes);
  }
  return Wrong(text, "its unit is none of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB");
}

}  // namespace zerohold::base
