// The hash, compiled in: the installed library then needs no libxxhash at run time.
#include "src/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace zerohold::base {

uint64_t Hash(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

uint64_t Hash(std::string_view text, uint64_t seed) {
  return XXH3_64bits_withSeed(text.data(), text.size(), seed);
}

}  // namespace zerohold::base
