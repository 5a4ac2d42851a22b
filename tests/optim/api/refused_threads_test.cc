// A system that gives no further thread, at whichever of those that an engine asks for: all ranks
// are told, nothing has changed, and the next try works.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>

#include "tests/support/ranks.h"
#include "tests/support/seeded.h"
#include "tests/support/trainer.h"

namespace {

// Threads that are still given, of all and of those that this thread asks for; below zero: any.
std::atomic<int> left{-1};
thread_local int left_here = -1;

bool TakeOne(int left) { return left < 0 || left > 0; }

}  // namespace

extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* context) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  const bool given = TakeOne(left) && TakeOne(left_here);
  if (left > 0) --left;
  if (left_here > 0) --left_here;
  return given ? real(thread, attributes, run, context) : EAGAIN;
}

namespace zerohold::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kMore = 40;  // than any engine asks for

EngineOptions Options() {
  EngineOptions options;
  options.zero_stage = 3;
  options.update_threads = 3;
  options.communication_timeout_s = 20;
  options.offload.nvme_paths = {std::filesystem::current_path()};
  options.offload.io_engine = IoEngine::kThreads;
  options.offload.host = {0, 0, 0};
  options.notice = [](const std::string&) {};
  return options;
}

void ExpectRefused(const Status& status) {
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("threads: the system gives no more"), HasSubstr("ulimit -u")));
}

TEST(RefusedThreads, InCreateOnOneRankAreToldOnAll) {
  const ModelSpec model = TensorsInUnits({300, 40});
  for (int given = 0, refused = -1; refused != 0 && given < kMore; ++given) {
    std::atomic<int> failed = 0;
    RunRanks(2, [&](int rank, const Communicator& communicator) {
      left_here = rank == 1 ? given : -1;
      const Status status =
          Engine::Create(Options(), {communicator}, model.parameters, model.units).status();
      left_here = -1;
      if (!status.ok()) ++failed;
      if (!status.ok()) ExpectRefused(status);
      Trainer trainer(Options(), communicator, model, Constant(1));
      EXPECT_TRUE(trainer.Step(SeededGradient(rank, 0)).applied);
    });
    refused = failed;
    EXPECT_TRUE(refused == 0 || refused == 2) << given;
    EXPECT_TRUE(given > 5 || refused == 2) << given;
  }
}

// The engine at work keeps the threads that it has.
TEST(RefusedThreads, InMoveAndAddUnitsLeaveTheEngineAsItWas) {
  EngineOptions memory = Options();
  const OffloadOptions disk = memory.offload;
  memory.offload = {};
  Trainer trainer(memory, SelfCommunicator(), TensorsInUnits({300, 40}), Constant(1));
  const auto until_it_works = [&](const std::function<Status()>& call) {
    for (int given = 0; given < kMore; ++given) {
      left = given;
      const Status status = call();
      left = -1;
      EXPECT_TRUE(trainer.Step(SeededGradient(0, given)).applied);
      if (status.ok()) return given;
      ExpectRefused(status);
    }
    return kMore;
  };
  const int moves = until_it_works([&] { return trainer.engine().Move(disk); });
  EXPECT_GT(moves, 5);
  EXPECT_LT(moves, kMore);
  const int adds = until_it_works([&] {
    return trainer.AddUnits({{{"late", {10}}}, {{"late", {"late"}, {}}}}, Constant(1));
  });
  EXPECT_GT(adds, 5);
  EXPECT_LT(adds, kMore);
}

}  // namespace
}  // namespace zerohold::testing
