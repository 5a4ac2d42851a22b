// The order of sums against its definition, written down as text.
#include "src/layout/sum_order.h"

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <bit>
#include <string>
#include <vector>

namespace zerohold::layout {
namespace {

// The tree over ranks [begin, end): the largest aligned power of two on the left.
std::string Tree(int begin, int end) {
  const auto ranks = static_cast<unsigned>(end - begin);
  if (ranks == 1) return std::to_string(begin);
  const int middle = begin + static_cast<int>(std::bit_floor(ranks - 1));
  return absl::StrCat("(", Tree(begin, middle), "+", Tree(middle, end), ")");
}

TEST(SumOrder, IsThePairwiseTree) {
  EXPECT_EQ(Tree(0, 5), "(((0+1)+(2+3))+4)");
  for (int world = 1; world <= 130; ++world) {
    std::vector<std::string> sums;
    for (int rank = 0; rank < world; ++rank) sums.push_back(std::to_string(rank));
    const std::vector<Addition> order = SumOrder(world);
    ASSERT_EQ(order.size(), static_cast<size_t>(world - 1));
    for (const auto& [into, from] : order) {
      ASSERT_FALSE(sums[from].empty()) << "rank " << from << " is added twice, world " << world;
      sums[into] = absl::StrCat("(", sums[into], "+", sums[from], ")");
      sums[from].clear();
    }
    EXPECT_EQ(sums[0], Tree(0, world));
  }
}

TEST(SumOrder, OfNobodyIsEmpty) { EXPECT_TRUE(SumOrder(0).empty()); }

}  // namespace
}  // namespace zerohold::layout
