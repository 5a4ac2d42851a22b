// Flags: what is refused, and that one line names the flag and the mend.
#include "mpi-launch/train/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace zerohold::train {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

StatusOr<Options> Parse(std::vector<const char*> flags) {
  flags.insert(flags.begin(), "zh-train");
  return ParseOptions(static_cast<int>(flags.size()), flags.data());
}

TEST(Options, DefaultsAreLegal) {
  const StatusOr<Options> options = Parse({});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->data, std::vector<std::string>{"/usr/share/common-licenses"});
  EXPECT_EQ(options->optimizer, "zerohold");
  EXPECT_EQ(options->compute_threads, 1);
}

TEST(Options, EachBadFlagIsNamedInOneLine) {
  const struct {
    std::vector<const char*> flags;
    const char* names;
    const char* mends;
  } cases[] = {
      {{"--width", "30"}, "--width 30 is no multiple of --heads 4", "that the heads divide"},
      {{"--heads", "0"}, "--heads is 0", "1 or more"},
      {{"--layers", "-3"}, "--layers is -3", "1 or more"},
      {{"--steps", "0"}, "--steps is 0", "1 or more"},
      {{"--micro-batch", "0"}, "--micro-batch is 0", "1 or more"},
      {{"--accumulate", "0"}, "--accumulate is 0", "1 or more"},
      {{"--bucket-elems", "0"}, "--bucket-elems is 0", "1 or more"},
      {{"--compute-threads", "0"}, "--compute-threads is 0", "1 or more"},
      {{"--zero-stage", "-1"}, "--zero-stage is -1", "0 or more"},
      {{"--learning-rate", "nan"}, "--learning-rate is nan", "0 or more, finite"},
      {{"--clip", "-1"}, "--clip is -1", "0 or more"},
      {{"--dtype", "fp8"}, "--dtype fp8 is unknown", "fp32, bf16 or fp16"},
      {{"--dtype", "bf16"}, "--dtype bf16 is not in this version", "give fp32"},
      {{"--optimizer", "sgd"}, "--optimizer sgd is unknown", "zerohold or torch"},
      {{"--instruction-set", "v9"}, "--instruction-set v9 is unknown", "best, baseline, v3 or v4"},
      {{"--steps", "5", "--warmup", "5"}, "--warmup 5", "more --total-steps"},
      {{"--optimizer", "torch", "--trace", "t"}, "--trace", "--optimizer zerohold"},
      {{"--steps", "many"}, "--steps = many", "--help"},
      {{"--depth", "3"}, "--depth", "--help"},
      {{"--data"}, "--data", "--help"},
  };
  for (const auto& c : cases) {
    const Status status = Parse(c.flags).status();
    EXPECT_FALSE(status.ok()) << c.flags[0];
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(c.names), HasSubstr(c.mends), Not(HasSubstr("\n"))));
  }
}

TEST(Options, ScheduleFollowsStepsUntilToldOtherwise) {
  EXPECT_EQ(Parse({"--steps", "50"})->Schedule().total_steps, 50);
  EXPECT_EQ(Parse({"--steps", "50"})->Schedule().warmup_steps, 5);
  EXPECT_EQ(Parse({"--steps", "50", "--total-steps", "9000"})->Schedule().total_steps, 9000);
  EXPECT_EQ(Parse({"--steps", "50", "--total-steps", "9000"})->Schedule().warmup_steps, 100);
  EXPECT_EQ(Parse({"--steps", "50", "--warmup", "0"})->Schedule().warmup_steps, 0);
}

TEST(Options, EachRankHasATraceOfItsOwn) {
  EXPECT_EQ(Parse({})->TracePath(1), "");
  EXPECT_EQ(Parse({"--trace", "a.b/t.json"})->TracePath(0), "a.b/t.json");
  EXPECT_EQ(Parse({"--trace", "a.b/t.json"})->TracePath(2), "a.b/t.2.json");
  EXPECT_EQ(Parse({"--trace", "a.b/t"})->TracePath(2), "a.b/t.2");
}

TEST(Options, TheFirstFlagThatDiffersIsNamed) {
  const std::string two = Parse({"--seed", "2", "--clip", "3"})->agreed_text;
  EXPECT_TRUE(CompareLines(two, two).ok());
  EXPECT_THAT(std::string(CompareLines(two, Parse({"--clip", "3"})->agreed_text).message()),
              AllOf(HasSubstr("seed=2"), HasSubstr("seed=1 on rank 0"), HasSubstr("the same")));
  // What may differ is not compared.
  EXPECT_EQ(Parse({"--log", "a", "--trace", "b", "--data", "c"})->agreed_text,
            Parse({})->agreed_text);
}

}  // namespace
}  // namespace zerohold::train
