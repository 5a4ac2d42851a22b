// XXH3-64 of a stream of fp32 weights.
#pragma once

#include <xxhash.h>

#include <memory>
#include <span>
#include <string>

namespace zerohold::train {

class ParameterHash {
 public:
  ParameterHash() : state_(XXH3_createState(), XXH3_freeState) { XXH3_64bits_reset(state_.get()); }

  void Add(std::span<const float> values) {
    XXH3_64bits_update(state_.get(), values.data(), values.size_bytes());
  }

  // 16 hex digits of all that was added.
  std::string Hex() const {
    constexpr char kDigits[] = "0123456789abcdef";
    uint64_t hash = XXH3_64bits_digest(state_.get());
    std::string hex(16, '0');
    for (auto digit = hex.rbegin(); digit != hex.rend(); ++digit, hash >>= 4) {
      *digit = kDigits[hash & 15];
    }
    return hex;
  }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

}  // namespace zerohold::train
