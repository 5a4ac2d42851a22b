// Counters under many threads.
#include "src/telemetry/counters.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace zerohold::telemetry {
namespace {

enum class Thing { kBytes, kStalls, kCount };

TEST(Counters, TakeReturnsAllAndClears) {
  Counters<Thing> counters;
  counters.Add(Thing::kBytes, 5);
  counters.Add(Thing::kBytes, 7);
  counters.Add(Thing::kStalls, 1);
  EXPECT_EQ(counters.Take(), (std::array<int64_t, 2>{12, 1}));
  EXPECT_EQ(counters.Take(), (std::array<int64_t, 2>{0, 0}));
}

TEST(Counters, NothingIsLostBetweenThreadsAndTakes) {
  Counters<Thing> counters;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&counters] {
      for (int i = 0; i < 10000; ++i) counters.Add(Thing::kBytes, 3);
    });
  }
  int64_t taken = 0;
  for (int i = 0; i < 100; ++i) taken += counters.Take()[0];
  for (std::thread& thread : threads) thread.join();
  taken += counters.Take()[0];
  EXPECT_EQ(taken, 4 * 10000 * 3);
}

}  // namespace
}  // namespace zerohold::telemetry
