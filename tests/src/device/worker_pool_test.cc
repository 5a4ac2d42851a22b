// The worker pool, and the cores it should have.
#include "src/device/cpu/worker_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <set>
#include <thread>
#include <vector>

#include "tests/src/device/count_new.h"

namespace zerohold::device {
namespace {

// Plain memory on purpose: that it is visible to the caller is part of the promise.
void CountIndex(void* counts, int64_t i) { ++(*static_cast<std::vector<int>*>(counts))[i]; }

TEST(WorkerPool, RunsEveryIndexOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    WorkerPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 2, 7, 1000}) {
      std::vector<int> counts(count);
      pool.ParallelFor(count, &CountIndex, &counts);
      EXPECT_EQ(std::ranges::count(counts, 1), count) << threads << " threads";
    }
  }
}

// The caller's own share is quick, the workers' is slow: it returns with theirs done, not with its
// own.
TEST(WorkerPool, ReturnsWhenAllIsDone) {
  struct Work {
    std::thread::id caller = std::this_thread::get_id();
    std::vector<int> counts = std::vector<int>(12);
    static void Run(void* context, int64_t i) {
      Work& work = *static_cast<Work*>(context);
      const bool quick = std::this_thread::get_id() == work.caller;
      std::this_thread::sleep_for(std::chrono::microseconds(quick ? 100 : 3000));
      ++work.counts[i];
    }
  } work;
  WorkerPool pool(3);
  for (int loop = 1; loop <= 10; ++loop) {
    pool.ParallelFor(12, &Work::Run, &work);
    ASSERT_EQ(std::ranges::count(work.counts, loop), 12);
  }
}

// Workers that wake late meet the next loops, with other bodies and contexts.
TEST(WorkerPool, LoopsDoNotMix) {
  WorkerPool pool(4);
  std::vector<int> counts[3] = {std::vector<int>(2), std::vector<int>(3), std::vector<int>(50)};
  constexpr int kLoops = 9000;
  const int64_t before = NewCalls();
  for (int i = 0; i < kLoops; ++i) {
    pool.ParallelFor(static_cast<int64_t>(counts[i % 3].size()), &CountIndex, &counts[i % 3]);
  }
  EXPECT_EQ(NewCalls(), before);
  for (const std::vector<int>& each : counts) {
    EXPECT_EQ(std::ranges::count(each, kLoops / 3), static_cast<int64_t>(each.size()));
  }
}

TEST(WorkerPool, SpreadsOverItsThreads) {
  constexpr int kThreads = 3;
  WorkerPool pool(kThreads);
  struct Meeting {
    std::atomic<int> present{0};
    static void Join(void* context, int64_t) {
      auto& present = static_cast<Meeting*>(context)->present;
      ++present;
      while (present < kThreads) std::this_thread::yield();
    }
  } meeting;
  pool.ParallelFor(kThreads, &Meeting::Join, &meeting);  // ends only when all are in it at once
  EXPECT_EQ(meeting.present, kThreads);
}

double ProcessCpuSeconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(WorkerPool, SleepsWhenIdle) {
  WorkerPool pool(4);
  std::vector<int> counts(4);
  pool.ParallelFor(4, &CountIndex, &counts);
  const double before = ProcessCpuSeconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(ProcessCpuSeconds() - before, 0.02);
}

TEST(AffinityMask, TellsItsCoresApart) {
  cpu_set_t whole;
  ASSERT_EQ(sched_getaffinity(0, sizeof(whole), &whole), 0);
  EXPECT_EQ(AllowedCores(), CPU_COUNT(&whole));
  std::set<uint64_t> fingerprints = {AffinityFingerprint()};
  int cores = 0;
  std::thread([&] {  // the mask of a thread ends with it
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &whole)) continue;
      cpu_set_t one;
      CPU_ZERO(&one);
      CPU_SET(cpu, &one);
      ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
      EXPECT_EQ(AllowedCores(), 1);
      EXPECT_EQ(AffinityFingerprint(), AffinityFingerprint());
      fingerprints.insert(AffinityFingerprint());
      ++cores;
    }
  })
      .join();
  EXPECT_EQ(static_cast<int>(fingerprints.size()), cores == 1 ? 1 : cores + 1);
}

}  // namespace
}  // namespace zerohold::device
