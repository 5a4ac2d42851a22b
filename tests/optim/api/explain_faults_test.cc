// ExplainFaults through the shared library: it answers, and hands faults on.
#include "zerohold/explain_faults.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <csignal>

namespace zerohold {
namespace {

TEST(ExplainFaultsDeathTest, HandsOnWhatItDoesNotKnow) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        signal(SIGSEGV, [](int) { _exit(9); });
        // The second call must not make the handler its own predecessor.
        if (!ExplainFaults().ok() || !ExplainFaults().ok()) _exit(1);
        *static_cast<volatile char*>(
            mmap(nullptr, 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) = 1;
      },
      testing::ExitedWithCode(9), "^$");
}

}  // namespace
}  // namespace zerohold
