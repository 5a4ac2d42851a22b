// The one order in which contributions of ranks are added: the pairwise tree over the rank index,
// ((0+1)+(2+3))+..., where an aligned block of 2^k ranks is one subtree.
#pragma once

#include <vector>

namespace zerohold::layout {

struct Addition {
  int into;
  int from;
};

// After all additions, in order, element 0 of an array of `world` addends holds the sum. world - 1
// of them. Example, world 5: 0+=1, 2+=3, 0+=2, 0+=4.
std::vector<Addition> SumOrder(int world);

}  // namespace zerohold::layout
