// The CPU device: the suite of all devices, and what it promises beyond.
#include "src/device/cpu/cpu_device.h"

#include <chrono>
#include <thread>
#include <vector>

#include "tests/src/device/conformance.h"
#include "tests/src/device/count_new.h"

namespace zerohold::device {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, DeviceConformance, testing::Values(&CreateCpuDevice));

void CountUp(void* counter) { ++*static_cast<std::atomic<int>*>(counter); }

TEST(CpuDevice, AFullQueueMakesItsCallerWait) {
  const auto device = CreateCpuDevice();
  const auto stream = device->CreateStream("full");
  Gate gate;
  std::atomic<int> pushed{0};
  std::atomic<int> runs{0};
  constexpr int kCount = 5000;
  stream->Run(&Gate::Pass, &gate);
  std::thread caller([&] {
    for (int i = 0; i < kCount; ++i, ++pushed) stream->Run(&CountUp, &runs);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_LT(pushed, kCount);
  EXPECT_EQ(runs, 0);
  gate.Open();
  caller.join();
  stream->Synchronize();
  EXPECT_EQ(runs, kCount);
}

// Two streams whose callers wait for each other's events over full queues still come to an end.
TEST(CpuDevice, FullQueuesThatWaitForEachOtherDoNotLock) {
  const auto device = CreateCpuDevice();
  const auto first = device->CreateStream("first");
  const auto second = device->CreateStream("second");
  const auto event = device->CreateEvent();
  std::atomic<int> runs{0};
  for (int i = 0; i < 5000; ++i) {
    Stream& from = i % 2 == 0 ? *first : *second;
    Stream& to = i % 2 == 0 ? *second : *first;
    from.Run(&CountUp, &runs);
    from.Record(*event);
    to.WaitFor(*event);
  }
  first->Synchronize();
  second->Synchronize();
  EXPECT_EQ(runs, 5000);
}

TEST(CpuDevice, NothingIsAllocatedPerCall) {
  const auto device = CreateCpuDevice();
  const auto first = device->CreateStream("first");
  const auto second = device->CreateStream("second");
  const auto event = device->CreateEvent();
  std::atomic<int> runs{0};
  std::vector<char> from(100);
  std::vector<char> to(100);
  const int64_t before = NewCalls();
  for (int i = 0; i < 1000; ++i) {
    first->Run(&CountUp, &runs);
    first->Copy(to.data(), from.data(), 100);
    first->Record(*event);
    second->WaitFor(*event);
    second->Zero(from.data(), 100);
    second->Record(*event);
    first->WaitFor(*event);
  }
  first->Synchronize();
  second->Synchronize();
  EXPECT_EQ(NewCalls(), before);
  EXPECT_EQ(runs, 1000);
}

}  // namespace
}  // namespace zerohold::device
