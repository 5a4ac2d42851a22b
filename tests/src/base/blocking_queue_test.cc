// The queue: order, many producers, waiting, and that a warm one allocates nothing.
#include "src/base/blocking_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <utility>
#include <vector>

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  if (void* memory = std::malloc(bytes)) return memory;
  std::abort();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace zerohold::base {
namespace {

TEST(BlockingQueue, FirstInFirstOutAcrossGrowth) {
  BlockingQueue<int> queue(4);
  int next_in = 0, next_out = 0;
  for (int round = 1; round < 40; ++round) {
    for (int i = 0; i < round; ++i) queue.Push(next_in++);
    for (int i = 0; i < round - round / 4; ++i) ASSERT_EQ(queue.Pop(), next_out++);
  }
  while (next_out < next_in) ASSERT_EQ(queue.TryPop(), next_out++);
  EXPECT_EQ(queue.TryPop(), std::nullopt);
}

TEST(BlockingQueue, AllocatesOnlyWhenMoreWaitThanEverBefore) {
  BlockingQueue<int> queue(8);
  const auto cycle = [&queue](int waiting) {
    const int64_t before = allocations.load();
    for (int round = 0; round < 100; ++round) {
      for (int i = 0; i < waiting; ++i) queue.Push(i);
      for (int i = 0; i < waiting; ++i) queue.Pop();
    }
    return allocations.load() - before;
  };
  EXPECT_EQ(cycle(8), 0);
  EXPECT_EQ(cycle(9), 1);
  EXPECT_EQ(cycle(16), 0);
}

TEST(BlockingQueue, CapacityZeroIsOrdinary) {
  BlockingQueue<int> queue(0);
  queue.Push(1);
  queue.Push(2);
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), 2);
}

TEST(BlockingQueue, OwnsNothingOfWhatWasTaken) {
  BlockingQueue<std::shared_ptr<int>> queue(2);
  auto value = std::make_shared<int>(7);
  queue.Push(value);
  EXPECT_EQ(value.use_count(), 2);
  EXPECT_EQ(*queue.Pop(), 7);
  EXPECT_EQ(value.use_count(), 1);
}

TEST(BlockingQueue, MoveOnlyValues) {
  BlockingQueue<std::unique_ptr<int>> queue(1);
  for (int i = 0; i < 3; ++i) queue.Push(std::make_unique<int>(i));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(*queue.Pop(), i);
}

TEST(BlockingQueue, PopWaitsForWhatComes) {
  BlockingQueue<int> queue;
  std::thread producer([&queue] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    queue.Push(5);
  });
  EXPECT_EQ(queue.Pop(), 5);
  producer.join();
}

TEST(BlockingQueue, ManyProducersOneConsumer) {
  constexpr int kProducers = 4, kEach = 5000;
  BlockingQueue<std::pair<int, int>> queue(16);
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kEach; ++i) queue.Push({p, i});
    });
  }
  int next[kProducers] = {};
  for (int i = 0; i < kProducers * kEach; ++i) {
    const auto [producer, value] = queue.Pop();
    ASSERT_EQ(value, next[producer]++);
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(queue.TryPop(), std::nullopt);
}

}  // namespace
}  // namespace zerohold::base
