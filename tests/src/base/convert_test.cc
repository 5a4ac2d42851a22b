// Conversions: every 16-bit value, and for each pair of neighbours what lies between them.
#include "src/base/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace zerohold::base {
namespace {

static_assert(FloatToBFloat16(1.0f) == 0x3f80 && BFloat16ToFloat(0x3f80) == 1.0f);
static_assert(FloatToFloat16(1.0f) == 0x3c00 && Float16ToFloat(0x3c00) == 1.0f);

// A 16-bit type as its exponent and mantissa bits say, and our conversions of it.
struct Format {
  const char* name;
  int mantissa_bits;
  int bias;
  uint16_t infinity;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
};

const Format kFormats[] = {
    {"bf16", 7, 127, 0x7f80, [](uint16_t h) { return BFloat16ToFloat(h); },
     [](float f) { return FloatToBFloat16(f); }},
    {"fp16", 10, 15, 0x7c00, [](uint16_t h) { return Float16ToFloat(h); },
     [](float f) { return FloatToFloat16(f); }},
};

class Convert : public testing::TestWithParam<Format> {
 protected:
  // The value by definition of the format. Requires: finite.
  double Defined(uint16_t bits) const {
    const Format& format = GetParam();
    const int exponent = (bits & 0x7fff) >> format.mantissa_bits;
    const int mantissa = bits & ((1 << format.mantissa_bits) - 1);
    const int implicit = exponent == 0 ? 0 : 1 << format.mantissa_bits;
    const int power = (exponent == 0 ? 1 : exponent) - format.bias - format.mantissa_bits;
    const double magnitude = std::ldexp(mantissa + implicit, power);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  }
  bool IsNan(uint16_t bits) const { return (bits & 0x7fff) > GetParam().infinity; }
};

TEST_P(Convert, EveryValueWidensExactlyAndComesBack) {
  for (uint32_t i = 0; i < 65536; ++i) {
    const auto bits = static_cast<uint16_t>(i);
    const float wide = GetParam().widen(bits);
    const uint16_t back = GetParam().narrow(wide);
    if (IsNan(bits)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_TRUE(IsNan(back)) << bits;
      ASSERT_EQ(back & 0x8000, bits & 0x8000) << bits;
      continue;
    }
    ASSERT_EQ(back, bits);
    if ((bits & 0x7fff) == GetParam().infinity) {
      ASSERT_TRUE(std::isinf(wide)) << bits;
    } else {
      ASSERT_EQ(static_cast<double>(wide), Defined(bits)) << bits;
    }
    ASSERT_EQ(std::signbit(wide), (bits & 0x8000) != 0) << bits;
  }
}

TEST_P(Convert, BetweenNeighboursItRoundsToTheNearestAndTiesToEven) {
  // The value after the largest one is where infinity would lie, were the exponents to go on.
  for (uint16_t low = 0; low < GetParam().infinity; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const double above =
        high == GetParam().infinity ? 2.0 * Defined(low) - Defined(low - 1) : Defined(high);
    const auto middle = static_cast<float>((Defined(low) + above) / 2.0);
    ASSERT_EQ(static_cast<double>(middle), (Defined(low) + above) / 2.0) << low;
    const uint16_t even = low % 2 == 0 ? low : high;
    for (const uint16_t sign : {uint16_t{0}, uint16_t{0x8000}}) {
      const float s = sign == 0 ? 1.0f : -1.0f;
      ASSERT_EQ(GetParam().narrow(s * middle), even | sign) << low;
      ASSERT_EQ(GetParam().narrow(s * std::nextafter(middle, 0.0f)), low | sign) << low;
      ASSERT_EQ(GetParam().narrow(s * std::nextafter(middle, INFINITY)), high | sign) << low;
      const auto just_above = std::nextafter(static_cast<float>(Defined(low)), INFINITY);
      ASSERT_EQ(GetParam().narrow(s * just_above), low | sign) << low;
    }
  }
}

TEST_P(Convert, ExtremesOfFp32) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(GetParam().narrow(INFINITY), GetParam().infinity);
  EXPECT_EQ(GetParam().narrow(-INFINITY), GetParam().infinity | 0x8000);
  EXPECT_EQ(GetParam().narrow(kLargest), GetParam().infinity);
  EXPECT_EQ(GetParam().narrow(-kLargest), GetParam().infinity | 0x8000);
  EXPECT_EQ(GetParam().narrow(kDenormal), 0);
  EXPECT_EQ(GetParam().narrow(-kDenormal), 0x8000);
  EXPECT_EQ(GetParam().narrow(0.0f), 0);
  EXPECT_EQ(GetParam().narrow(-0.0f), 0x8000);
  // A NaN whose payload lies in the dropped bits alone must not become infinity; a full one must
  // not wrap.
  for (const uint32_t nan : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu, 0x7fc00000u}) {
    EXPECT_TRUE(IsNan(GetParam().narrow(BitsFloat(nan)))) << nan;
    EXPECT_EQ(GetParam().narrow(BitsFloat(nan)) >> 15, nan >> 31) << nan;
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Convert, testing::ValuesIn(kFormats),
                         [](const auto& info) { return info.param.name; });

TEST(ConvertBFloat16, DenormalsAreKept) {
  EXPECT_EQ(FloatToBFloat16(1e-39f), 0x000b);  // the CPU's own instruction gives 0
}

}  // namespace
}  // namespace zerohold::base
