// The forms of a master: what is stored gives the fp32 value back, and the copy is its rounding.
#include "optim/kernels/masters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "optim/kernels/element/master_form.h"
#include "tests/optim/kernels/operand_arrays.h"

namespace zerohold::kernels {
namespace {

bool IsNan(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }

// Every upper half beside the lower halves where something changes, and random ones.
std::vector<uint32_t> Patterns() {
  std::vector<uint32_t> patterns;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const uint32_t lower : {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff}) {
      patterns.push_back(upper << 16 | lower);
    }
  }
  std::mt19937 random(3);
  for (int i = 0; i < 1000000; ++i) patterns.push_back(static_cast<uint32_t>(random()));
  return patterns;
}

TEST(Remainder, IsExactForAllButThePayloadOfNan) {
  for (const uint32_t bits : Patterns()) {
    const SplitFloat split = SplitMaster(base::BitsFloat(bits));
    const uint32_t joined = base::FloatBits(JoinMaster(split.copy, split.low));
    if (IsNan(bits)) {
      ASSERT_TRUE(IsNan(joined) && IsNan(uint32_t{split.copy} << 16)) << std::hex << bits;
      ASSERT_EQ(joined >> 16, base::FloatToBFloat16(base::BitsFloat(bits))) << std::hex << bits;
    } else {
      ASSERT_EQ(joined, bits) << std::hex << bits;
    }
  }
}

TEST(Remainder, TheCopyIsTheNearestAndATieGoesAwayFromZero) {
  for (const uint32_t bits : Patterns()) {
    const uint16_t copy = SplitMaster(base::BitsFloat(bits)).copy;
    const uint16_t even = base::FloatToBFloat16(base::BitsFloat(bits));
    if (IsNan(bits) || (bits & 0xffff) != 0x8000) {
      ASSERT_EQ(copy, even) << std::hex << bits;
    } else {
      ASSERT_EQ(copy, (bits >> 16) + 1) << std::hex << bits;  // the magnitude, the sign being a bit
    }
  }
  EXPECT_EQ(SplitMaster(INFINITY).copy, 0x7f80);
  EXPECT_EQ(SplitMaster(INFINITY).low, 0);
  EXPECT_EQ(SplitMaster(-0.0f).copy, 0x8000);
}

// What a trainer wrote into its copy is a master, and stays the same copy.
TEST(Remainder, ACopyWithoutLowBitsIsItself) {
  for (uint32_t copy = 0; copy < 0x10000; ++copy) {
    const float master = JoinMaster(static_cast<uint16_t>(copy), 0);
    ASSERT_EQ(base::FloatBits(master), copy << 16);
    if (IsNan(copy << 16)) continue;
    ASSERT_EQ(SplitMaster(master).copy, copy);
    ASSERT_EQ(SplitMaster(master).low, 0);
  }
}

class EveryForm : public testing::TestWithParam<WeightForm> {};
INSTANTIATE_TEST_SUITE_P(, EveryForm, testing::ValuesIn(kForms), [](const auto& info) {
  const WeightForm form = info.param;
  return NameOf(form.copy) + std::string(form.master == MasterForm::kRemainder ? "Remainder" : "");
});

TEST_P(EveryForm, MastersComeBackAndCopiesAreTheirRounding) {
  for (const int64_t elems : {0, 1, 15, 64, 1001}) {
    OperandArrays arrays({.copy = GetParam().copy, .master = GetParam().master}, elems);
    std::vector<float> values;
    for (int64_t i = 0; i < elems; ++i) values.push_back(std::sin(static_cast<float>(i)));
    arrays.SetMasters(values);
    EXPECT_EQ(arrays.Masters(), values);
    std::vector<float> copies;
    for (int64_t i = 0; i < elems; ++i) {
      copies.push_back(arrays.Copy(i));
      ASSERT_EQ(copies.back(), RoundTo(GetParam().copy, values[i]));  // no ties among them
    }
    arrays.ForgetMasters();
    EXPECT_EQ(arrays.Masters(), copies);
    EXPECT_TRUE(arrays.GuardsIntact());
  }
}

// With a learning rate of 0 an update does nothing but round: ties, and the ends of the range.
TEST(Masters, UpdatesRoundTheCopyAsTheFormSays) {
  const std::vector<float> masters = {0x1.01p0f,   0x1.03p0f, -0x1.01p0f,  0x1.002p0f,
                                      -0x1.006p0f, 65520.0f,  0x1.ffp127f, 0x1p-25f};
  const std::vector<float> copies[] = {
      masters,
      {1.0f, 0x1.04p0f, -1.0f, 1.0f, -1.0f, 65536.0f, INFINITY, 0x1p-25f},
      {0x1.01p0f, 0x1.03p0f, -0x1.01p0f, 1.0f, -0x1.008p0f, INFINITY, INFINITY, 0.0f},
      {0x1.02p0f, 0x1.04p0f, -0x1.02p0f, 1.0f, -1.0f, 65536.0f, INFINITY, 0x1p-25f}};
  constexpr int64_t kRepeats = 16;  // so that vector code sees them
  GroupOptions group;
  group.learning_rate = 0.0;
  for (size_t f = 0; f < std::size(kForms); ++f) {
    for (const InstructionSet set : kSets) {
      if (!Supports(set)) continue;
      std::vector<float> values;
      for (int64_t i = 0; i < kRepeats; ++i) {
        values.insert(values.end(), masters.begin(), masters.end());
      }
      OperandArrays arrays({.copy = kForms[f].copy, .master = kForms[f].master},
                           static_cast<int64_t>(values.size()));
      arrays.SetMasters(values);
      arrays.Step(group, 1, 1.0, set);
      EXPECT_EQ(arrays.Masters(), values);
      for (int64_t i = 0; i < arrays.elems(); ++i) {
        ASSERT_EQ(arrays.Copy(i), copies[f][static_cast<size_t>(i) % masters.size()])
            << f << ' ' << NameOf(set) << ' ' << i;
      }
    }
  }
}

TEST(Masters, BytesOfAForm) {
  EXPECT_EQ(MasterBytes({DType::kFloat32, MasterForm::kFloat32}), 0);
  EXPECT_EQ(MasterBytes({DType::kFloat32, MasterForm::kRemainder}), 0);  // it means nothing there
  EXPECT_EQ(MasterBytes({DType::kBFloat16, MasterForm::kFloat32}), 4);
  EXPECT_EQ(MasterBytes({DType::kFloat16, MasterForm::kFloat32}), 4);
  EXPECT_EQ(MasterBytes({DType::kBFloat16, MasterForm::kRemainder}), 2);
  const UpdateShape shape{.master = MasterForm::kRemainder};
  EXPECT_EQ(SelectUpdate(shape, InstructionSet::kBest), SelectUpdate({}, InstructionSet::kBest));
}

}  // namespace
}  // namespace zerohold::kernels
