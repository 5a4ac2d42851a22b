#include "mpi-launch/train/sizes.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string_view>

namespace zerohold::train {

StatusOr<int64_t> ParseSize(const std::string& text) {
  const Status wrong = absl::InvalidArgumentError(
      "\"" + text + "\" is no size: give bytes, 0 or more, as 500000, 64MiB or 1.5GB");
  long double number = -1;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) return wrong;

  std::string unit(rest, end);
  unit.erase(0, std::min(unit.find_first_not_of(' '), unit.size()));
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (unit.ends_with('b')) unit.pop_back();
  const bool binary = unit.ends_with('i');
  if (binary) unit.pop_back();
  constexpr std::string_view kPrefixes = "kmgt";
  if (unit.size() > 1 || (binary && unit.empty())) return wrong;
  const size_t prefix = kPrefixes.find(unit);  // 0 for none too
  if (prefix == std::string_view::npos) return wrong;
  const auto power = static_cast<int>(unit.empty() ? 0 : prefix + 1);
  if (power == 0 && number != std::floor(number)) {
    return absl::InvalidArgumentError("\"" + text +
                                      "\" is no whole number of bytes: give a unit, as 1.5GB");
  }

  const long double bytes = number * std::pow(binary ? 1024.0L : 1000.0L, power);
  return bytes < 0x1p63L ? StatusOr<int64_t>(static_cast<int64_t>(bytes)) : wrong;
}

StatusOr<Budget> ParseBudget(const std::string& text) {
  if (!text.ends_with('%')) {
    const StatusOr<int64_t> bytes = ParseSize(text);
    if (bytes.ok()) return Budget(*bytes);
    return absl::InvalidArgumentError(std::string(bytes.status().message()) +
                                      ", or a percentage, as 50%");
  }
  double percent = -1;
  const char* const end = text.data() + text.size() - 1;
  const auto [rest, error] = std::from_chars(text.data(), end, percent, std::chars_format::fixed);
  if (rest == end && error == std::errc() && percent >= 0 && percent <= 100) {
    return Budget::Fraction(percent / 100);
  }
  return absl::InvalidArgumentError("\"" + text + "\" is no percentage: give 0% to 100%");
}

}  // namespace zerohold::train
