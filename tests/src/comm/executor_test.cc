// The executor: order, both kinds of waiting, no allocation.
#include "src/comm/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/src/device/count_new.h"

namespace zerohold::comm {
namespace {

struct Log {
  std::vector<int64_t> arguments;
  std::vector<std::thread::id> threads;
  std::atomic<int64_t> count = 0;
};

void Append(void* context, int64_t argument) {
  auto* log = static_cast<Log*>(context);
  log->arguments.push_back(argument);
  log->threads.push_back(std::this_thread::get_id());
  ++log->count;
}

bool HasTen(void* context) { return static_cast<Log*>(context)->count == 10; }

class ExecutorTest : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Executor, ExecutorTest, testing::Bool(), [](const auto& info) {
  return info.param ? "OwnThread" : "CallersThread";
});

TEST_P(ExecutorTest, RunsTasksInTheirOrderOnOneThread) {
  Log log;
  Executor executor(GetParam());
  EXPECT_EQ(executor.own_thread(), GetParam());
  for (int i = 0; i < 10; ++i) executor.Post({Append, &log, i});
  executor.Wait(HasTen, &log);
  EXPECT_EQ(log.arguments, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  for (const std::thread::id thread : log.threads) {
    EXPECT_EQ(thread == std::this_thread::get_id(), !GetParam());
  }
}

TEST_P(ExecutorTest, WaitsForTasksThatOthersPostLater) {
  Log log;
  Executor executor(GetParam());
  std::jthread poster([&] {
    for (int i = 0; i < 10; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      executor.Post({Append, &log, i});
    }
  });
  executor.Wait(HasTen, &log);
  EXPECT_EQ(log.arguments.size(), 10u);
}

TEST_P(ExecutorTest, WakeMakesAWaitLookAgain) {
  std::atomic<bool> done = false;
  Executor executor(GetParam());
  std::jthread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    done = true;
    executor.Wake();
  });
  executor.Wait([](void* flag) { return static_cast<std::atomic<bool>*>(flag)->load(); }, &done);
  EXPECT_TRUE(done);
}

TEST_P(ExecutorTest, RunsWhatWasPostedBeforeItEnds) {
  Log log;
  {
    Executor executor(GetParam());
    for (int i = 0; i < 100; ++i) executor.Post({Append, &log, i});
  }
  EXPECT_EQ(log.count, 100);
}

struct Chain {
  Executor* executor;
  std::atomic<int64_t> left;
};

void Step(void* context, int64_t) {
  auto* chain = static_cast<Chain*>(context);
  if (--chain->left > 0) chain->executor->Post({Step, chain, 0});
}

TEST_P(ExecutorTest, TasksMayPostAndNothingIsAllocated) {
  Executor executor(GetParam());
  const auto run = [&executor](int64_t steps) {
    Chain chain{&executor, steps};
    executor.Post({Step, &chain, 0});
    executor.Wait([](void* c) { return static_cast<Chain*>(c)->left == 0; }, &chain);
  };
  run(1);
  const int64_t before = NewCalls();
  run(10000);
  EXPECT_EQ(NewCalls(), before);
}

}  // namespace
}  // namespace zerohold::comm
