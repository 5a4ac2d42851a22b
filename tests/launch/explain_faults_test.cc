// zh-train tells which parameter a fault has touched.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launch/program.h"

namespace zerohold::launch_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ExplainFaults, NameTheReleasedGradientThatWasRead) {
  const std::string preload = "LD_PRELOAD=" ZH_TOUCH_RELEASED " ";
  const Outcome outcome = RunShell(preload + TinyTrain("--zero-stage 2"));
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("embedding.tokens (gradient)"),
                                 HasSubstr("call Acquire(kBackward) for it")));
  EXPECT_EQ(RunShell(preload + TinyTrain("--zero-stage 1")).exit_code, 0);  // always there
}

}  // namespace
}  // namespace zerohold::launch_test
