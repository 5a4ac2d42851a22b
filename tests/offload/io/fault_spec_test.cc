// The words of a flag become a schedule, or say which word is wrong.
#include <gmock/gmock.h>

#include "offload/io/backends.h"

namespace zerohold::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(FaultSpec, IsReadFromAFlag) {
  const FaultSpec spec = ParseFaultSpec(
                             "eio=0.01,short=0.5,seed=7,first=100,flip=1,again=0.25,enospc=0.125,"
                             "stale=0.0625,late=0.75,halve_every=3,again_every=5,last=120,"
                             "flip_begin=4,flip_end=40,lost=0.375")
                             .value();
  EXPECT_EQ(spec.eio, 0.01);
  EXPECT_EQ(spec.short_transfer, 0.5);
  EXPECT_EQ(spec.seed, 7);
  EXPECT_EQ(spec.first, 100);
  EXPECT_EQ(spec.bit_flip, 1.0);
  EXPECT_EQ(spec.again, 0.25);
  EXPECT_EQ(spec.enospc, 0.125);
  EXPECT_EQ(spec.stale, 0.0625);
  EXPECT_EQ(spec.late, 0.75);
  EXPECT_EQ(spec.halve_every, 3);
  EXPECT_EQ(spec.again_every, 5);
  EXPECT_EQ(spec.last, 120);
  EXPECT_EQ(spec.flip_begin, 4);
  EXPECT_EQ(spec.flip_end, 40);
  EXPECT_EQ(spec.lost, 0.375);
  EXPECT_EQ(ParseFaultSpec("").value().eio, 0.0);
}

TEST(FaultSpec, SaysWhatIsWrong) {
  for (const char* wrong : {"eoi=0.1", "eio", "eio=", "eio=1.5", "eio=-0.1", "eio=nan", "seed=x",
                            "seed=-1", "seed=0.5", "=1"}) {
    const absl::Status status = ParseFaultSpec(std::string("late=0.5,") + wrong).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(std::string("\"") + wrong + "\""), HasSubstr("short, again, eio"),
                      HasSubstr("first, seed, halve_every")));
  }
}

}  // namespace
}  // namespace zerohold::io
