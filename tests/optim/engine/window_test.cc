// The rules of the calls between two steps.
#include "optim/engine/window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace zerohold::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<UnitSpec> kUnits = {
    {"in", {"embedding"}, {}}, {"block", {"weight"}, {}}, {"out", {"norm"}, {"embedding"}}};

class WindowTest : public ::testing::Test {
 protected:
  std::vector<UnitId> Begins(UnitId unit) {
    std::vector<UnitId> units;
    EXPECT_TRUE(window.CheckAcquire(unit, AcquireMode::kBackward, &units).ok());
    window.Acquire(unit, AcquireMode::kBackward);
    return units;
  }
  void Begin(bool last) {
    ASSERT_TRUE(window.CheckBegin().ok());
    window.BeginMicroBatch(last);
  }
  std::vector<UnitId> Ready(UnitId unit) {
    std::vector<UnitId> units;
    EXPECT_TRUE(window.GradReady(unit, &units).ok());
    return units;
  }
  std::vector<UnitId> Absent(UnitId unit) {
    std::vector<UnitId> units;
    EXPECT_TRUE(window.GradAbsent(unit, &units).ok());
    return units;
  }
  void ExpectRefused(const absl::Status& status, const char* text) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  }

  Window window{kUnits, {false, false, false}};
  std::vector<UnitId> list;
  bool written = false;
};

TEST_F(WindowTest, TiedParameterIsReadyWhenOwnerAndUsersHaveReported) {
  Begin(true);
  EXPECT_THAT(Begins(2), ElementsAre(2, 0));
  EXPECT_THAT(Ready(2), ElementsAre(2));
  EXPECT_THAT(Begins(1), ElementsAre(1));
  EXPECT_THAT(Ready(1), ElementsAre(1));
  EXPECT_THAT(Begins(0), IsEmpty());
  EXPECT_THAT(Ready(0), ElementsAre(0));
}

TEST_F(WindowTest, GradientsBeginOnceInAWindowOrInEveryMicroBatch) {
  for (const bool fresh : {false, true}) {
    window = Window(kUnits, {fresh, fresh, fresh});
    Begin(false);
    EXPECT_THAT(Begins(1), ElementsAre(1));
    EXPECT_THAT(Ready(1), ElementsAre(1));
    Begin(true);
    EXPECT_EQ(Begins(1), fresh ? std::vector<UnitId>{1} : std::vector<UnitId>{});
    EXPECT_THAT(Ready(1), ElementsAre(1));
    EXPECT_EQ(window.micro_batches(), 2);
    EXPECT_TRUE(window.Present(1));
    EXPECT_FALSE(window.Present(0));
    window.Reset();
    EXPECT_EQ(window.micro_batches(), 0);
    EXPECT_FALSE(window.Present(1));
  }
}

TEST_F(WindowTest, WhatWaitsForOthersIsReadyWhenTheMicroBatchCloses) {
  Begin(false);
  EXPECT_THAT(Begins(2), ElementsAre(2, 0));
  EXPECT_THAT(Ready(2), ElementsAre(2));  // the embedding waits for its own unit
  window.CloseMicroBatch(&list);
  EXPECT_THAT(list, ElementsAre(0));
}

TEST_F(WindowTest, AnAcquireForBackwardPromisesAReportOfAllThatItTouches) {
  Begin(true);
  EXPECT_FALSE(window.Promised(0));
  for (int nested = 0; nested < 2; ++nested) Begins(2);
  EXPECT_TRUE(window.Promised(0));
  EXPECT_FALSE(window.Promised(1));
  EXPECT_THAT(Ready(2), ElementsAre(2));
  EXPECT_FALSE(window.Promised(0));  // though its own report is missing
  Absent(0);
  EXPECT_FALSE(window.Promised(0));
}

TEST_F(WindowTest, WhatCountsAsAbsentIsRefusedUntilTheNextMicroBatch) {
  Begin(false);
  window.CountAsAbsent(1);
  ExpectRefused(window.CheckAcquire(1, AcquireMode::kBackward, &list), "unit block");
  Begin(true);
  EXPECT_TRUE(window.CheckAcquire(1, AcquireMode::kBackward, &list).ok());
}

TEST_F(WindowTest, AReportOfNothingIsReadyAndNotPresent) {
  Begin(true);
  EXPECT_THAT(Absent(1), ElementsAre(1));
  EXPECT_FALSE(window.Present(1));
  EXPECT_FALSE(window.AnyPresent());
  EXPECT_TRUE(window.CheckStep().ok());
  ExpectRefused(window.GradAbsent(1, &list), "unit block has reported already");
  ExpectRefused(window.GradReady(1, &list), "unit block has reported already");
  ExpectRefused(window.CheckAcquire(1, AcquireMode::kBackward, &list), "unit block");
}

TEST_F(WindowTest, AReportOfNothingCountsAmongThoseThatAnOwnerWaitsFor) {
  for (const bool user_first : {false, true}) {
    Begin(true);
    Begins(2);
    const std::vector<UnitId> first = user_first ? Ready(2) : Absent(0);
    const std::vector<UnitId> second = user_first ? Absent(0) : Ready(2);
    EXPECT_EQ(first, user_first ? std::vector<UnitId>{2} : std::vector<UnitId>{});
    EXPECT_EQ(second, user_first ? std::vector<UnitId>{0} : (std::vector<UnitId>{2, 0}));
    EXPECT_TRUE(window.Present(0));
    window.Reset();
  }
}

TEST_F(WindowTest, OrderOfCallsIsChecked) {
  ExpectRefused(window.CheckStep(), "BeginMicroBatch");
  ExpectRefused(window.CheckAcquire(1, AcquireMode::kBackward, &list), "unit block");
  ExpectRefused(window.Release(1, &written), "unit block is not acquired; call it once");
  ExpectRefused(window.GradAbsent(1, &list), "unit block: no micro-batch is open");
  Begin(true);
  ExpectRefused(window.GradReady(1, &list), "Acquire(kBackward)");
  ExpectRefused(window.CheckBegin(), "call Step first, or give last = false");
  Begins(1);
  ExpectRefused(window.GradAbsent(1, &list), "unit block: it was acquired for backward");
  ExpectRefused(window.CheckStep(), "unit block");
  Ready(1);
  ExpectRefused(window.GradReady(1, &list), "unit block has reported already");
  ExpectRefused(window.CheckAcquire(1, AcquireMode::kBackward, &list), "unit block");
  EXPECT_TRUE(window.CheckStep().ok());
}

TEST_F(WindowTest, UnreportedUnitStopsTheNextMicroBatch) {
  Begin(false);
  Begins(1);
  ExpectRefused(window.CheckBegin(), "unit block");
  EXPECT_EQ(window.micro_batches(), 1);
}

TEST_F(WindowTest, UnknownUnitsAreNamed) {
  for (const UnitId unit : {-1, 3}) {
    EXPECT_EQ(window.CheckAcquire(unit, AcquireMode::kForward, &list).code(),
              absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(window.Release(unit, &written).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(window.GradReady(unit, &list).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(window.GradAbsent(unit, &list).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(WindowTest, AnUnknownModeIsRefusedWithThoseThereAre) {
  const absl::Status status = window.CheckAcquire(1, AcquireMode{9}, &list);
  EXPECT_EQ(status, absl::InvalidArgumentError(
                        "Acquire of unit block: mode is 9; give kForward (0), kBackward (1), "
                        "kEvaluate (2) or kWrite (3)"));
}

TEST_F(WindowTest, WriteIsAdoptedAtTheOutermostRelease) {
  window.Acquire(1, AcquireMode::kForward);
  window.Acquire(1, AcquireMode::kWrite);
  ASSERT_TRUE(window.Release(1, &written).ok());
  EXPECT_FALSE(written);
  ASSERT_TRUE(window.Release(1, &written).ok());
  EXPECT_TRUE(written);
}

}  // namespace
}  // namespace zerohold::engine
