// The tree sum against a naive one.
#include "src/comm/tree_sum.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/src/comm/addends.h"

namespace zerohold::comm {
namespace {

// Every world up to where blocks are shortest, and sizes on both sides of a block's end.
TEST(TreeSum, IsTheNaiveSumInBits) {
  for (const int world : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 31, 33, 64, 70}) {
    TreeSum tree_sum(world);
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      for (const int64_t elems : {0, 1, 255, 256, 257, 1024, 2049}) {
        std::vector<std::vector<std::byte>> addends;
        std::vector<const void*> places;
        for (int rank = 0; rank < world; ++rank) {
          addends.push_back(Addends(rank, dtype, elems));
          places.push_back(addends.back().data());
        }
        std::vector<std::byte>& out = addends[world / 2];
        base::NormBins norm;
        tree_sum.Run({.addends = places,
                      .dtype = dtype,
                      .elems = elems,
                      .divisor = 7.0f,
                      .out = out.data(),
                      .norm = &norm});
        const std::vector<std::byte> expected = NaiveMean(world, dtype, 0, elems, 7.0f);
        ASSERT_TRUE(SameBits(out, expected)) << world << " " << NameOf(dtype) << " " << elems;
        double squares = 0;
        for (int64_t i = 0; i < elems; ++i) {
          const double value = Get(dtype, expected.data(), i);
          squares += value * value;
        }
        ASSERT_NEAR(norm.Norm() * norm.Norm(), squares, 1e-6 * squares);
      }
    }
  }
}

}  // namespace
}  // namespace zerohold::comm
