// Sizes for people: what is written, what is read, and what is refused and why.
#include "src/base/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace zerohold::base {
namespace {

using testing::HasSubstr;

TEST(FormatBytes, OneDecimalAtMost) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1 KiB");
  EXPECT_EQ(FormatBytes(3 << 29), "1.5 GiB");
  EXPECT_EQ(FormatBytes(64 << 20), "64 MiB");
  EXPECT_EQ(FormatBytes(-1536), "-1.5 KiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::max()), "8 EiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::min()), "-8 EiB");
}

TEST(FormatBytes, NeverSays1024) {
  EXPECT_EQ(FormatBytes((1 << 20) - 1), "1 MiB");
  EXPECT_EQ(FormatBytes((1 << 20) - 52), "1023.9 KiB");
}

TEST(ParseBytes, NumbersAndUnits) {
  EXPECT_EQ(*ParseBytes("0"), 0);
  EXPECT_EQ(*ParseBytes("123"), 123);
  EXPECT_EQ(*ParseBytes("7B"), 7);
  EXPECT_EQ(*ParseBytes("64MB"), 64'000'000);
  EXPECT_EQ(*ParseBytes("64 mib"), 64 << 20);
  EXPECT_EQ(*ParseBytes("1.5GiB"), int64_t{3} << 29);
  EXPECT_EQ(*ParseBytes(".5 KiB"), 512);
  EXPECT_EQ(*ParseBytes("2TB"), 2'000'000'000'000);
  EXPECT_EQ(*ParseBytes("9223372036854775807"), std::numeric_limits<int64_t>::max());
}

TEST(ParseBytes, WhatFormatWritesItReads) {
  for (const int64_t bytes :
       {int64_t{0}, int64_t{1000}, int64_t{1} << 10, int64_t{3} << 29, int64_t{5} << 40}) {
    EXPECT_EQ(*ParseBytes(FormatBytes(bytes)), bytes);
  }
}

TEST(ParseBytes, SaysWhatIsWrong) {
  for (const char* text : {"", "MB", "-1", "+1", "inf", "nan", "64M", "1,5GiB", "64 MB!", "0x10",
                           "1e3", "9223372036854775808", "1e30GiB", "99999999TiB"}) {
    const absl::Status status = ParseBytes(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("\"") + text + "\""));
  }
}

}  // namespace
}  // namespace zerohold::base
