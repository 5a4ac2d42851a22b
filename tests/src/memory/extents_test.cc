// Extents: first fit, exact sums, and the same answers as a row of single frames searched in full.
#include "src/memory/extents.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "src/base/align.h"

namespace zerohold::memory {
namespace {

using base::kFrameBytes;

TEST(ExtentAllocator, TakesTheLowestThatFits) {
  ExtentAllocator extents(8 * kFrameBytes);
  const Extent a = extents.Allocate(kFrameBytes + 1).value();
  const Extent b = extents.Allocate(kFrameBytes).value();
  const Extent c = extents.Allocate(2 * kFrameBytes).value();
  EXPECT_EQ(a, (Extent{0, 2 * kFrameBytes}));
  EXPECT_EQ(b, (Extent{2 * kFrameBytes, kFrameBytes}));
  EXPECT_EQ(c, (Extent{3 * kFrameBytes, 2 * kFrameBytes}));
  extents.Free(a);
  EXPECT_EQ(extents.Allocate(3 * kFrameBytes).value().offset, 5 * kFrameBytes);
  EXPECT_EQ(extents.Allocate(1).value().offset, 0);
}

TEST(ExtentAllocator, JoinsWhatIsGivenBack) {
  ExtentAllocator extents(3 * kFrameBytes);
  std::vector<Extent> taken;
  for (int i = 0; i < 3; ++i) taken.push_back(extents.Allocate(kFrameBytes).value());
  EXPECT_EQ(extents.Allocate(1), std::nullopt);
  for (const int i : {0, 2, 1}) extents.Free(taken[i]);
  EXPECT_EQ(extents.Allocate(3 * kFrameBytes).value(), (Extent{0, 3 * kFrameBytes}));
}

TEST(ExtentAllocator, RefusesWhatDoesNotFitAndLosesNothing) {
  ExtentAllocator extents(4 * kFrameBytes);
  std::vector<Extent> taken;
  for (int i = 0; i < 4; ++i) taken.push_back(extents.Allocate(kFrameBytes).value());
  extents.Free(taken[0]);
  extents.Free(taken[2]);
  EXPECT_EQ(extents.Allocate(2 * kFrameBytes), std::nullopt);  // enough, but not in one piece
  EXPECT_EQ(extents.Allocate(INT64_MAX), std::nullopt);
  for (const int i : {0, 2}) EXPECT_EQ(extents.Allocate(kFrameBytes), taken[i]);
}

TEST(ExtentAllocator, OfNothingIsLegal) {
  ExtentAllocator nothing(0);
  EXPECT_EQ(nothing.Allocate(1), std::nullopt);
  EXPECT_EQ(nothing.Allocate(0), Extent{});
  nothing.Free({});
}

TEST(ExtentAllocatorDeathTest, ChecksWhatIsGivenBack) {
  ExtentAllocator extents(4 * kFrameBytes);
  extents.Allocate(2 * kFrameBytes);
  EXPECT_DEATH(extents.Free({2 * kFrameBytes, kFrameBytes}), "check failed");  // is free
  EXPECT_DEATH(extents.Free({kFrameBytes, 2 * kFrameBytes}), "check failed");  // half is
  EXPECT_DEATH(extents.Free({4 * kFrameBytes, kFrameBytes}), "check failed");  // outside
  EXPECT_DEATH(extents.Free({kFrameBytes, kFrameBytes / 2}), "check failed");
}

// A row of frames, each taken or free, searched from the front every time.
class Row {
 public:
  explicit Row(int64_t frames) : taken_(frames) {}
  int64_t Find(int64_t frames) const {  // -1: nowhere
    int64_t run = 0;
    for (int64_t i = 0; i < std::ssize(taken_); ++i) {
      run = taken_[i] ? 0 : run + 1;
      if (run == frames) return i + 1 - frames;
    }
    return -1;
  }
  void Set(const Extent& extent, bool taken) {
    std::fill_n(taken_.begin() + extent.offset / kFrameBytes, extent.bytes / kFrameBytes, taken);
  }

 private:
  std::vector<bool> taken_;
};

TEST(ExtentAllocatorProperty, AnswersAsARowOfFramesDoes) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
    const int64_t frames = 1 + below(60);
    ExtentAllocator extents(frames * kFrameBytes);
    Row row(frames);
    std::vector<Extent> taken;
    for (int i = 0; i < 300; ++i) {
      if (taken.empty() || below(2) == 0) {
        const int64_t bytes = 1 + below((1 + below(frames)) * kFrameBytes);
        const int64_t wanted = base::CeilDiv(bytes, kFrameBytes);
        const int64_t at = row.Find(wanted);
        const std::optional<Extent> extent = extents.Allocate(bytes);
        ASSERT_EQ(extent.has_value(), at >= 0);
        if (!extent) continue;
        ASSERT_EQ(*extent, (Extent{at * kFrameBytes, wanted * kFrameBytes}));
        row.Set(*extent, true);
        taken.push_back(*extent);
      } else {
        Extent& given = taken[below(std::ssize(taken))];
        // In one go, or its first frames first.
        const Extent head{given.offset, (1 + below(given.bytes / kFrameBytes)) * kFrameBytes};
        extents.Free(head);
        row.Set(head, false);
        given.offset += head.bytes;
        given.bytes -= head.bytes;
        std::erase_if(taken, [](const Extent& extent) { return extent.bytes == 0; });
      }
    }
    for (const Extent& extent : taken) extents.Free(extent);
    EXPECT_EQ(extents.Allocate(frames * kFrameBytes), (Extent{0, frames * kFrameBytes}));
  }
}

}  // namespace
}  // namespace zerohold::memory
