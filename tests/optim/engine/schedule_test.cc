// Learning-rate schedules.
#include "zerohold/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace zerohold {
namespace {

TEST(Schedule, ConstantIsOne) {
  for (const int64_t step : {1, 2, 1000000}) EXPECT_EQ(LearningRateFactor({}, step), 1.0);
}

TEST(Schedule, WarmUpReachesOneAtItsLastStep) {
  for (const auto kind : {ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine}) {
    const ScheduleOptions options{.kind = kind, .warmup_steps = 10, .total_steps = 20};
    EXPECT_DOUBLE_EQ(LearningRateFactor(options, 1), 0.1);
    EXPECT_DOUBLE_EQ(LearningRateFactor(options, 5), 0.5);
    EXPECT_DOUBLE_EQ(LearningRateFactor(options, 10), 1.0);
  }
}

TEST(Schedule, LinearAndCosineEndAtTheFinalFraction) {
  ScheduleOptions options{
      .kind = ScheduleKind::kLinear, .warmup_steps = 0, .total_steps = 100, .final_fraction = 0.1};
  EXPECT_DOUBLE_EQ(LearningRateFactor(options, 50), 0.55);
  EXPECT_DOUBLE_EQ(LearningRateFactor(options, 100), 0.1);
  EXPECT_DOUBLE_EQ(LearningRateFactor(options, 5000), 0.1);
  options.kind = ScheduleKind::kCosine;
  EXPECT_DOUBLE_EQ(LearningRateFactor(options, 25), 0.1 + 0.9 * 0.5 * (1 + std::sqrt(0.5)));
  EXPECT_DOUBLE_EQ(LearningRateFactor(options, 50), 0.55);
  EXPECT_DOUBLE_EQ(LearningRateFactor(options, 100), 0.1);
  EXPECT_DOUBLE_EQ(LearningRateFactor(options, 5000), 0.1);
}

TEST(Schedule, ScalesWithTheBatch) {
  const ScheduleOptions options{.base_batch_size = 256, .batch_size = 1024};
  EXPECT_DOUBLE_EQ(LearningRateFactor(options, 7), 4.0);
}

TEST(Schedule, BadOptionsNameTheField) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::pair<ScheduleOptions, const char*> cases[] = {
      {{.warmup_steps = -1}, "warmup_steps is -1"},
      {{.kind = ScheduleKind::kLinear, .warmup_steps = 5, .total_steps = 5}, "total_steps is 5"},
      {{.kind = ScheduleKind::kCosine}, "total_steps is 0"},
      {{.final_fraction = 1.5}, "final_fraction is 1.5"},
      {{.final_fraction = nan}, "final_fraction is nan"},
      {{.base_batch_size = 8}, "batch_size is 0"},
      {{.batch_size = 8}, "batch_size is 8"},
  };
  for (const auto& [options, text] : cases) {
    const Status status = options.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(text));
  }
  EXPECT_TRUE(ScheduleOptions{}.Validate().ok());
}

}  // namespace
}  // namespace zerohold
