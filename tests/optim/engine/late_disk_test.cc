// A disk that answers no more: the engine ends in bounded time, and what the disk does after that
// finds the memory and the file that it was told. The threads of I/O call pread and pwrite of this
// program, which hold them back; each test in a child, whose end takes what is left.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <thread>

#include "tests/src/memory/child.h"
#include "tests/support/ranks.h"
#include "tests/support/seeded.h"
#include "tests/support/trainer.h"

namespace {

enum class Held : int { kNothing, kWrites, kAll };
std::atomic<Held> held{Held::kNothing};
std::atomic<int> holding{0};  // calls that wait
std::atomic<int> failed{0};   // of those, that the kernel refused when it was their turn

// Not the page with which a folder is tried.
ssize_t Call(long number, int file, uintptr_t memory, size_t bytes, off_t offset) {
  const Held now = held;
  const bool late =
      bytes > 4096 && (now == Held::kAll || (now == Held::kWrites && number == SYS_pwrite64));
  if (late) ++holding;
  if (late) held.wait(now);
  const ssize_t moved = syscall(number, file, memory, bytes, offset);
  if (late && moved != static_cast<ssize_t>(bytes)) ++failed;
  if (late) --holding;
  return moved;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" ssize_t pread(int file, void* memory, size_t bytes, off_t offset) {
  return Call(SYS_pread64, file, reinterpret_cast<uintptr_t>(memory), bytes, offset);
}
extern "C" ssize_t pwrite(int file, const void* memory, size_t bytes, off_t offset) {
  return Call(SYS_pwrite64, file, reinterpret_cast<uintptr_t>(memory), bytes, offset);
}
#pragma GCC visibility pop

namespace zerohold::testing {
namespace {

using memory::InChild;

EngineOptions OnDisk(int stage) {
  EngineOptions options;
  options.zero_stage = stage;
  options.record_elems = options.bucket_elems = 1024;
  options.communication_timeout_s = 0.5;
  options.offload.nvme_paths = {std::filesystem::current_path()};
  options.offload.io_engine = IoEngine::kThreads;
  if (stage >= 2) options.offload.host.gradients = 0;
  if (stage >= 3) options.offload.host.parameters = 0;
  options.notice = [](const std::string&) {};
  return options;
}

// Lets the disk go on, until it has done all that it was told.
std::string Release() {
  if (holding == 0) return "nothing was held back";
  held = Held::kNothing;
  held.notify_all();
  for (int i = 0; i < 20000 && holding > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return holding > 0 ? "does not end" : failed > 0 ? "found memory or file gone" : "";
}

class LateDisk : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Stages, LateDisk, ::testing::Values(1, 2, 3));

TEST_P(LateDisk, MovesBytesAfterTheEngineIsGone) {
  EXPECT_EQ(InChild([]() -> std::string {
              Status failure;
              {
                Trainer trainer(OnDisk(GetParam()), SelfCommunicator(),
                                TensorsInUnits({5000, 3000}), SeededValue);
                trainer.Step(SeededGradient(0, 0));
                held = Held::kAll;
                failure = trainer.TryStep(SeededGradient(0, 1)).status();
                trainer.engine().Close().IgnoreError();
              }
              const std::string released = Release();
              if (!released.empty()) return released;
              return absl::IsUnavailable(failure) ? "" : failure.ToString();
            }),
            "");
}

// What it was to be replaced by goes, and with it who knows of the transfer; the engine ends too.
TEST(LateDisk, MovesBytesAfterAMoveThatTimedOut) {
  EXPECT_EQ(
      InChild([]() -> std::string {
        std::string why;
        {
          EngineOptions options = OnDisk(1);
          Trainer trainer(options, SelfCommunicator(), TensorsInUnits({5000, 3000}), SeededValue);
          trainer.Step(SeededGradient(0, 0));
          held = Held::kWrites;
          options.offload.window = 2;  // no more staging than there is
          const Status moved = trainer.engine().Move(options.offload);
          const Status refused = trainer.TryStep(SeededGradient(0, 1)).status();
          if (!absl::IsUnavailable(moved)) why = moved.ToString();
          if (refused != moved) why += refused.ToString();
          trainer.engine().Close().IgnoreError();
        }
        return why + Release();
      }),
      "");
}

// Units that come later are larger, so that all records get other staging.
TEST(LateDisk, MovesBytesIntoTheStagingThatCameLater) {
  EXPECT_EQ(InChild([]() -> std::string {
              Status failure;
              {
                EngineOptions options = OnDisk(1);
                options.record_elems = 1 << 20;
                Trainer trainer(options, SelfCommunicator(), TensorsInUnits({5000}), SeededValue);
                const Status added = trainer.AddUnits(
                    {{{"later", {500'000}}}, {{"last", {"later"}, {}}}}, SeededValue);
                if (!added.ok()) return added.ToString();
                trainer.Step(SeededGradient(0, 0));
                held = Held::kAll;
                failure = trainer.TryStep(SeededGradient(0, 1)).status();
                trainer.engine().Close().IgnoreError();
              }
              const std::string released = Release();
              if (!released.empty()) return released;
              return absl::IsUnavailable(failure) ? "" : failure.ToString();
            }),
            "");
}

}  // namespace
}  // namespace zerohold::testing
