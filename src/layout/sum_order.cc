// Writes the pairwise tree down level by level: at level k, neighbours are 2^k ranks apart.
#include "src/layout/sum_order.h"

#include <cstdint>

namespace zerohold::layout {

std::vector<Addition> SumOrder(int world) {
  std::vector<Addition> order;
  if (world > 1) order.reserve(world - 1);
  for (int64_t distance = 1; distance < world; distance *= 2) {
    for (int64_t into = 0; into + distance < world; into += 2 * distance) {
      order.push_back({static_cast<int>(into), static_cast<int>(into + distance)});
    }
  }
  return order;
}

}  // namespace zerohold::layout
