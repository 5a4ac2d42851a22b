// Reads a schedule of faults from a flag.
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "offload/io/backends.h"

namespace zerohold::io {
namespace {

struct Key {
  const char* name;
  double FaultSpec::*probability;  // or
  int64_t FaultSpec::*number;
};

constexpr Key kKeys[] = {
    {"short", &FaultSpec::short_transfer, nullptr},
    {"again", &FaultSpec::again, nullptr},
    {"eio", &FaultSpec::eio, nullptr},
    {"enospc", &FaultSpec::enospc, nullptr},
    {"flip", &FaultSpec::bit_flip, nullptr},
    {"stale", &FaultSpec::stale, nullptr},
    {"late", &FaultSpec::late, nullptr},
    {"lost", &FaultSpec::lost, nullptr},
    {"first", nullptr, &FaultSpec::first},
    {"seed", nullptr, &FaultSpec::seed},
    {"halve_every", nullptr, &FaultSpec::halve_every},
    {"again_every", nullptr, &FaultSpec::again_every},
    {"last", nullptr, &FaultSpec::last},
    {"flip_begin", nullptr, &FaultSpec::flip_begin},
    {"flip_end", nullptr, &FaultSpec::flip_end},
};

absl::Status Wrong(absl::string_view part) {
  std::string probabilities;
  std::string numbers;
  for (const Key& key : kKeys) {
    std::string& list = key.probability != nullptr ? probabilities : numbers;
    absl::StrAppend(&list, list.empty() ? "" : ", ", key.name);
  }
  return absl::InvalidArgumentError(absl::StrCat("faults: \"", part, "\" is none of ",
                                                 probabilities, " with =0 to =1, or ", numbers,
                                                 " with a whole number"));
}

}  // namespace

absl::StatusOr<FaultSpec> ParseFaultSpec(std::string_view text) {
  FaultSpec spec;
  const absl::string_view all(text.data(), text.size());
  for (const absl::string_view part : absl::StrSplit(all, ',', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> sides =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    bool known = false;
    for (const Key& key : kKeys) {
      if (sides.first != key.name) continue;
      if (key.probability != nullptr) {
        double& value = spec.*key.probability;
        known = absl::SimpleAtod(sides.second, &value) && value >= 0.0 && value <= 1.0;
      } else {
        int64_t& value = spec.*key.number;
        known = absl::SimpleAtoi(sides.second, &value) && value >= 0;
      }
    }
    if (!known) return Wrong(part);
  }
  return spec;
}

}  // namespace zerohold::io
