// XXH3-64, the one hash of the house.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace zerohold::base {

uint64_t Hash(std::span<const std::byte> bytes, uint64_t seed = 0);
uint64_t Hash(std::string_view text, uint64_t seed = 0);

}  // namespace zerohold::base
