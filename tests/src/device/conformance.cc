// The suite of all devices. It touches device memory through streams only, and shows that something
// waits by holding it back with a gate.
#include "tests/src/device/conformance.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

namespace zerohold::device {
namespace {

// Long enough for work that wrongly does not wait to show itself.
void GiveTimeToGoWrong() { std::this_thread::sleep_for(std::chrono::milliseconds(10)); }

void CountUp(void* counter) { ++*static_cast<int*>(counter); }

std::vector<char> Pattern(int64_t bytes) {
  std::vector<char> pattern(bytes);
  std::iota(pattern.begin(), pattern.end(), 'a');
  return pattern;
}

TEST_P(DeviceConformance, CopiesThroughItsMemory) {
  const auto stream = device_->CreateStream("copy");
  for (const int64_t bytes : {0, 1, 7, 4096, 1 << 20}) {
    void* first = device_->Allocate(bytes).value();
    void* second = device_->Allocate(bytes).value();
    const std::vector<char> in = Pattern(bytes);
    std::vector<char> out(bytes);
    stream->Copy(first, in.data(), bytes);
    stream->Copy(second, first, bytes);
    stream->Copy(out.data(), second, bytes);
    stream->Synchronize();
    EXPECT_EQ(in, out);
    stream->Zero(second, bytes);
    stream->Copy(out.data(), second, bytes);
    stream->Synchronize();
    EXPECT_EQ(std::ranges::count(out, 0), bytes);
    device_->Free(first);
    device_->Free(second);
  }
}

TEST_P(DeviceConformance, MemoryIsAlignedAndRefusedWithNumbers) {
  void* one = device_->Allocate(1).value();
  void* other = device_->Allocate(1).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(one) % 4096, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(other) % 4096, 0u);
  EXPECT_NE(one, other);
  device_->Free(one);
  device_->Free(other);
  for (const int64_t bytes : {int64_t{1} << 50, INT64_MAX}) {
    const absl::Status status = device_->Allocate(bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(std::to_string(bytes)));
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("available"));
  }
}

TEST_P(DeviceConformance, KeepsTheOrderOfAStream) {
  const auto stream = device_->CreateStream("order");
  struct Step {
    std::vector<int>* log;
    int number;
  };
  std::vector<int> log;
  std::vector<Step> steps;
  for (int i = 0; i < 2000; ++i) steps.push_back({&log, i});
  for (Step& step : steps) {
    stream->Run(
        [](void* s) { static_cast<Step*>(s)->log->push_back(static_cast<Step*>(s)->number); },
        &step);
  }
  stream->Synchronize();
  std::vector<int> expected(steps.size());
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(log, expected);
}

TEST_P(DeviceConformance, ManySmallCopies) {
  const auto stream = device_->CreateStream("small");
  constexpr int kCount = 10000;
  auto* memory = static_cast<char*>(device_->Allocate(kCount).value());
  const std::vector<char> in = Pattern(kCount);
  std::vector<char> out(kCount);
  for (int i = 0; i < kCount; ++i) stream->Copy(memory + i, &in[i], 1);
  for (int i = 0; i < kCount; ++i) stream->Copy(&out[i], memory + i, 1);
  stream->Synchronize();
  EXPECT_EQ(in, out);
  device_->Free(memory);
}

TEST_P(DeviceConformance, CallsReturnAtOnce) {
  const auto stream = device_->CreateStream("async");
  const auto event = device_->CreateEvent();
  Gate gate;
  int runs = 0;
  stream->Run(&Gate::Pass, &gate);
  stream->Run(&CountUp, &runs);
  stream->Record(*event);
  GiveTimeToGoWrong();
  EXPECT_FALSE(event->Reached());
  gate.Open();
  event->Wait();
  EXPECT_TRUE(event->Reached());
  EXPECT_EQ(runs, 1);
}

TEST_P(DeviceConformance, AFreshEventIsReached) {
  const auto stream = device_->CreateStream("fresh");
  const auto event = device_->CreateEvent();
  EXPECT_TRUE(event->Reached());
  event->Wait();
  stream->WaitFor(*event);
  stream->Synchronize();
}

TEST_P(DeviceConformance, AnEventMarksWhatItWasRecordedForLast) {
  const auto stream = device_->CreateStream("again");
  const auto event = device_->CreateEvent();
  stream->Record(*event);
  event->Wait();
  Gate gate;
  stream->Run(&Gate::Pass, &gate);
  stream->Record(*event);
  EXPECT_FALSE(event->Reached());
  gate.Open();
  event->Wait();
}

TEST_P(DeviceConformance, AStreamWaitsForAnother) {
  const auto first = device_->CreateStream("first");
  const auto second = device_->CreateStream("second");
  const auto written = device_->CreateEvent();
  const auto read = device_->CreateEvent();
  void* memory = device_->Allocate(4096).value();
  const std::vector<char> in = Pattern(4096);
  std::vector<char> out(4096);
  Gate gate;
  first->Run(&Gate::Pass, &gate);
  first->Copy(memory, in.data(), 4096);
  first->Record(*written);
  second->WaitFor(*written);
  second->Copy(out.data(), memory, 4096);
  second->Record(*read);
  GiveTimeToGoWrong();
  EXPECT_FALSE(read->Reached());
  gate.Open();
  read->Wait();
  EXPECT_EQ(in, out);
  device_->Free(memory);
}

// The wait is for the point marked when it was queued: not for a later one of the same stream ...
TEST_P(DeviceConformance, AWaitIgnoresALaterRecord) {
  const auto first = device_->CreateStream("first");
  const auto second = device_->CreateStream("second");
  const auto event = device_->CreateEvent();
  Gate early;
  Gate late;
  first->Run(&Gate::Pass, &early);
  first->Record(*event);
  second->WaitFor(*event);
  first->Run(&Gate::Pass, &late);
  first->Record(*event);
  early.Open();
  second->Synchronize();
  EXPECT_FALSE(event->Reached());
  late.Open();
}

// ... and still for the old one when the event meanwhile marks a point that is reached elsewhere.
TEST_P(DeviceConformance, AWaitOutlivesARecordOnAnotherStream) {
  const auto first = device_->CreateStream("first");
  const auto second = device_->CreateStream("second");
  const auto idle = device_->CreateStream("idle");
  const auto event = device_->CreateEvent();
  const auto waited = device_->CreateEvent();
  Gate gate;
  first->Run(&Gate::Pass, &gate);
  first->Record(*event);
  second->WaitFor(*event);
  second->Record(*waited);
  idle->Record(*event);
  event->Wait();
  GiveTimeToGoWrong();
  EXPECT_FALSE(waited->Reached());
  gate.Open();
  waited->Wait();
}

TEST_P(DeviceConformance, StreamsAndEventsMayGoInAnyOrder) {
  auto first = device_->CreateStream("first");
  auto second = device_->CreateStream("second");
  auto event = device_->CreateEvent();
  const auto kept = device_->CreateEvent();
  Gate gate;
  int runs = 0;
  first->Run(&Gate::Pass, &gate);
  first->Record(*event);
  first->Record(*kept);
  second->WaitFor(*event);
  second->Run(&CountUp, &runs);
  event.reset();  // the wait for it is queued
  gate.Open();
  first.reset();
  EXPECT_TRUE(kept->Reached());
  second->Synchronize();
  EXPECT_EQ(runs, 1);
}

TEST_P(DeviceConformance, DestructionEndsWhatWasQueued) {
  auto stream = device_->CreateStream("busy");
  Gate gate;
  int runs = 0;
  stream->Run(&Gate::Pass, &gate);
  for (int i = 0; i < 100; ++i) stream->Run(&CountUp, &runs);
  std::thread opener([&] {
    GiveTimeToGoWrong();
    gate.Open();
  });
  stream.reset();
  EXPECT_EQ(runs, 100);
  opener.join();
}

TEST_P(DeviceConformance, EventsMayBeAskedFromAnyThread) {
  const auto stream = device_->CreateStream("asked");
  const auto event = device_->CreateEvent();
  std::atomic<bool> stop{false};
  std::thread asker([&] {
    while (!stop) {
      event->Wait();
      static_cast<void>(event->Reached());
    }
  });
  int runs = 0;
  for (int i = 0; i < 1000; ++i) {
    stream->Run(&CountUp, &runs);
    stream->Record(*event);
  }
  stop = true;
  asker.join();
  stream->Synchronize();
  EXPECT_EQ(runs, 1000);
}

// Random work on four streams: whatever was before an event's point is over when a waiter goes on.
TEST_P(DeviceConformance, RandomGraphsKeepTheirArrows) {
  constexpr int kStreams = 4;
  struct Step {
    std::atomic<bool> ended{false};
    std::vector<const Step*> before;
    bool right = true;
    int busy = 0;
    static void Run(void* context) {
      Step& step = *static_cast<Step*>(context);
      for (const Step* earlier : step.before) step.right &= earlier->ended.load();
      const auto until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(step.busy);
      while (std::chrono::steady_clock::now() < until) {
      }
      step.ended = true;
    }
  };
  std::mt19937 random(7);
  std::vector<Step> steps(5000);
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Event>> events;
  std::vector<const Step*> marked(kStreams, nullptr);  // by each event
  std::vector<const Step*> last(kStreams, nullptr);    // of each stream
  for (int i = 0; i < kStreams; ++i) {
    streams.push_back(device_->CreateStream("random"));
    events.push_back(device_->CreateEvent());
  }
  for (Step& step : steps) {
    const auto stream = random() % kStreams;
    const auto event = random() % kStreams;
    step.busy = static_cast<int>(random() % 2000);
    if (last[stream] != nullptr) step.before.push_back(last[stream]);
    if (random() % 2 == 0) {
      streams[stream]->WaitFor(*events[event]);
      if (marked[event] != nullptr) step.before.push_back(marked[event]);
    }
    streams[stream]->Run(&Step::Run, &step);
    last[stream] = &step;
    if (random() % 2 == 0) {
      const auto record = random() % kStreams;
      streams[stream]->Record(*events[record]);
      marked[record] = &step;
    }
  }
  for (const auto& stream : streams) stream->Synchronize();
  for (const Step& step : steps) EXPECT_TRUE(step.ended && step.right) << &step - steps.data();
}

}  // namespace
}  // namespace zerohold::device
