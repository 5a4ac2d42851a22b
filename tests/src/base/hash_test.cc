// The hash is XXH3-64: what other tools compute over the same bytes.
#include "src/base/hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace zerohold::base {
namespace {

TEST(Hash, KnownValues) {
  EXPECT_EQ(Hash(std::string_view("")), 0x2d06800538d394c2u);
  EXPECT_EQ(Hash(std::string_view("abc")), 0x78af5f94892f3950u);
  EXPECT_EQ(Hash(std::string_view("abc"), 0), Hash(std::string_view("abc")));
  EXPECT_NE(Hash(std::string_view("abc"), 1), Hash(std::string_view("abc")));
}

TEST(Hash, BytesAndTextAgreeAndEveryByteCounts) {
  std::vector<char> bytes(1000);
  std::iota(bytes.begin(), bytes.end(), 0);
  const auto hash = [&] { return Hash(std::as_bytes(std::span(bytes)), 7); };
  const uint64_t whole = hash();
  EXPECT_EQ(whole, Hash(std::string_view(bytes.data(), bytes.size()), 7));
  for (char& byte : bytes) {
    byte ^= 1;
    ASSERT_NE(hash(), whole);
    byte ^= 1;
  }
}

}  // namespace
}  // namespace zerohold::base
