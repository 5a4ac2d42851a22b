// Training in 16 bits: one hash however it is sharded, losses near those of fp32, and a loss scale
// that finds its way.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/launch/program.h"

namespace zerohold::launch_test {
namespace {

using Log = std::vector<nlohmann::json>;

class TrainPrecision : public testing::TestWithParam<const char*> {};

TEST_P(TrainPrecision, HashIsTheSameForAllThatMayNotMatter) {
  const std::string precision = GetParam();
  const std::string hash = HashOf(TrainAndReadLog(2, precision + " --zero-stage 1"));
  ASSERT_EQ(hash.size(), 16u);
  for (const char* flags :
       {"--zero-stage 0 --bucket-elems 700", "--zero-stage 2 --update-threads 3",
        "--zero-stage 3 --recompute", "--zero-stage 3 --bucket-elems 5000 --evaluate-every 2",
        "--zero-stage 3 --persistence-threshold 10000 --max-live-parameters 64MiB"}) {
    EXPECT_EQ(HashOf(TrainAndReadLog(2, precision + " " + flags)), hash) << flags;
  }
}

std::string NameOfCase(const testing::TestParamInfo<const char*>& info) {
  constexpr const char* kNames[] = {"bf16", "fp16", "bf16_in_fp32", "remainder"};
  return kNames[info.index];
}

INSTANTIATE_TEST_SUITE_P(Types, TrainPrecision,
                         testing::Values("--dtype bf16", "--dtype fp16",
                                         "--dtype bf16 --compute-dtype fp32",
                                         "--dtype bf16 --master remainder"),
                         NameOfCase);

class TrainReproducible : public testing::TestWithParam<const char*> {};

TEST_P(TrainReproducible, HashIsTheSameOverRanksForOneGlobalBatch) {
  const std::string flags = std::string("--reproducible --dtype ") + GetParam();
  const std::string hash = HashOf(TrainAndReadLog(1, flags + " --accumulate 4 --zero-stage 1"));
  ASSERT_EQ(hash.size(), 16u);
  EXPECT_EQ(HashOf(TrainAndReadLog(2, flags + " --accumulate 2 --zero-stage 0")), hash);
  EXPECT_EQ(HashOf(TrainAndReadLog(2, flags + " --accumulate 2 --zero-stage 3")), hash);
  EXPECT_EQ(HashOf(TrainAndReadLog(4, flags + " --accumulate 1 --zero-stage 2")), hash);
}

INSTANTIATE_TEST_SUITE_P(Types, TrainReproducible, testing::Values("fp32", "bf16", "fp16"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TrainPrecisionOf, SixteenBitsFollowFp32) {
  const std::string flags = "--steps 50 --learning-rate 0.003 --zero-stage 3 --dtype ";
  const Log reference = TrainAndReadLog(2, flags + "fp32");
  ASSERT_EQ(reference.size(), 51u);
  EXPECT_LT(reference[49].at("loss"), reference[0].at("loss").get<double>() - 1);
  const std::pair<const char*, double> types[] = {{"bf16", 0.05}, {"fp16", 0.01}};
  for (const auto& [type, tolerance] : types) {
    const Log log = TrainAndReadLog(2, flags + type);
    ASSERT_EQ(log.size(), 51u) << type;
    EXPECT_NE(HashOf(log), HashOf(reference)) << type;
    for (size_t i = 0; i < 50; ++i) {
      EXPECT_NEAR(log[i].at("loss"), reference[i].at("loss"), tolerance) << type << " " << i + 1;
    }
  }
}

TEST(TrainPrecisionOf, DynamicScaleSkipsUntilItFits) {
  const Log log =
      TrainAndReadLog(2, "--dtype fp16 --zero-stage 2 --steps 30 --loss-scale-initial 4294967296");
  ASSERT_EQ(log.size(), 31u);
  double scale = 4294967296;
  int skipped = 0;
  for (size_t i = 0; i < 30; ++i) {  // each skip halves it, and nothing doubles it so soon
    EXPECT_EQ(log[i].at("loss_scale"), scale) << i;
    if (log[i].at("applied").get<bool>()) continue;
    EXPECT_EQ(skipped++, i) << "it fitted before";
    scale /= 2;
  }
  EXPECT_GT(skipped, 0);
  EXPECT_LT(skipped, 25);
  EXPECT_EQ(log[30].at("skipped"), skipped);
  EXPECT_LT(log[29].at("loss"), log[0].at("loss").get<double>() - 0.3);
}

TEST(TrainPrecisionOf, DynamicScaleGrowsIntoASkipAndGoesOn) {
  const Log log =
      TrainAndReadLog(1, "--dtype fp16 --steps 40 --loss-scale-interval 1 --loss-scale dynamic");
  ASSERT_EQ(log.size(), 41u);
  EXPECT_EQ(log[0].at("loss_scale"), 65536.0);
  for (size_t i = 0; i + 1 < 40; ++i) {
    const double factor = log[i].at("applied").get<bool>() ? 2 : 0.5;
    EXPECT_EQ(log[i + 1].at("loss_scale"), factor * log[i].at("loss_scale").get<double>()) << i;
  }
  EXPECT_GT(log[40].at("skipped"), 0);
  EXPECT_LT(log[40].at("skipped"), 25);
}

}  // namespace
}  // namespace zerohold::launch_test
