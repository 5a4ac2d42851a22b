// Training through the engine against torch alone, and against itself.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/launch/program.h"

namespace zerohold::launch_test {
namespace {

using Log = std::vector<nlohmann::json>;

void ExpectCloseLosses(const Log& one, const Log& other, double tolerance) {
  ASSERT_EQ(one.size(), other.size());
  for (size_t i = 0; i + 1 < one.size(); ++i) {
    EXPECT_NEAR(one[i].at("loss"), other[i].at("loss"), tolerance) << "step " << i + 1;
    EXPECT_NEAR(one[i].at("learning_rate"), other[i].at("learning_rate"), 1e-12);
  }
}

TEST(TrainReference, LossesOfTheEngineAreTorchs) {
  // A clip that bites, decay, and a rate that moves the weights. (Ten times the default rate is
  // chaos: a difference of one bit grows a millionfold in 50 steps.)
  const std::string flags = "--steps 50 --clip 0.5 --weight-decay 0.1 --learning-rate 0.003 ";
  const Log torch = TrainAndReadLog(2, flags + "--optimizer torch");
  const Log engine = TrainAndReadLog(2, flags + "--optimizer zerohold");
  ASSERT_EQ(torch.size(), 51u);
  ExpectCloseLosses(engine, torch, 1e-4);
  EXPECT_LT(torch[49].at("loss"), torch[0].at("loss").get<double>() - 1);
  for (size_t i = 0; i < 50; ++i) {
    EXPECT_NEAR(engine[i].at("grad_norm").get<double>() / torch[i].at("grad_norm").get<double>(), 1,
                1e-3);
  }
}

TEST(TrainReference, RecomputeGivesTheSameBits) {
  const Log kept = TrainAndReadLog(2, "--optimizer torch");
  const Log recomputed = TrainAndReadLog(2, "--optimizer torch --recompute");
  ASSERT_EQ(kept.size(), 7u);
  EXPECT_EQ(HashOf(kept), HashOf(recomputed));
  ExpectCloseLosses(kept, recomputed, 0);
}

TEST(TrainReference, ASampleDependsOnItsPlaceInTheGlobalBatchAlone) {
  const Log one = TrainAndReadLog(1, "--micro-batch 8");
  ExpectCloseLosses(one, TrainAndReadLog(1, "--micro-batch 2 --accumulate 4"), 1e-4);
  ExpectCloseLosses(one, TrainAndReadLog(4, "--micro-batch 2"), 1e-4);
  ExpectCloseLosses(one, TrainAndReadLog(2, "--micro-batch 2 --accumulate 2"), 1e-4);
}

}  // namespace
}  // namespace zerohold::launch_test
