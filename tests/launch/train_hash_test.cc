// One hash of the parameters, however the engine is told to come to it.
#include <gtest/gtest.h>

#include "tests/launch/program.h"

namespace zerohold::launch_test {
namespace {

class TrainHash : public testing::TestWithParam<int> {};

TEST_P(TrainHash, IsTheSameForAllThatMayNotMatter) {
  const int ranks = GetParam();
  const std::string hash = HashOf(TrainAndReadLog(ranks, "--zero-stage 1"));
  ASSERT_EQ(hash.size(), 16u);
  std::vector<const char*> others = {
      "--zero-stage 1",     "--zero-stage 0",
      "--zero-stage 2",     "--zero-stage 3",
      "--bucket-elems 256", "--update-threads 3 --instruction-set baseline --recompute"};
  if (ranks == 2) {
    others.insert(others.end(), {"--bucket-elems 5000", "--update-threads 1", "--recompute",
                                 "--zero-stage 0 --bucket-elems 700 --update-threads 2",
                                 "--zero-stage 3 --bucket-elems 700 --recompute"});
  }
  for (const char* flags : others) EXPECT_EQ(HashOf(TrainAndReadLog(ranks, flags)), hash) << flags;
}

TEST_P(TrainHash, IsTheSameWithAccumulation) {
  const int ranks = GetParam();
  const std::string hash = HashOf(TrainAndReadLog(ranks, "--accumulate 3 --zero-stage 1"));
  ASSERT_EQ(hash.size(), 16u);
  EXPECT_EQ(HashOf(TrainAndReadLog(ranks, "--accumulate 3 --zero-stage 0 --recompute")), hash);
  // Stages 2 and 3 reduce each micro-batch by itself: other sums, the same for both.
  EXPECT_EQ(HashOf(TrainAndReadLog(ranks, "--accumulate 3 --zero-stage 2")),
            HashOf(TrainAndReadLog(ranks, "--accumulate 3 --zero-stage 3")));
}

INSTANTIATE_TEST_SUITE_P(Ranks, TrainHash, testing::Values(1, 2, 3, 4));

TEST(TrainHashOf, AnotherSeedIsAnother) {
  EXPECT_NE(HashOf(TrainAndReadLog(1, "--seed 1")), HashOf(TrainAndReadLog(1, "--seed 2")));
}

}  // namespace
}  // namespace zerohold::launch_test
