// From Create to Close: engines one after another and side by side, calls after the end, and what
// is left behind.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <latch>
#include <thread>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Text(const Status& status) { return std::string(status.message()); }

// Of one process: others of ours may be running.
std::vector<std::string> SharedMemoryNames(pid_t pid = getpid()) {
  std::vector<std::string> names;
  const std::string own = "zerohold." + std::to_string(pid) + ".";
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.starts_with(own)) names.push_back(name);
  }
  return names;
}

int64_t OpenFiles() {
  return std::ranges::distance(std::filesystem::directory_iterator("/proc/self/fd"));
}

TEST(OffloadCases, OFF_18_NothingIsLeftInSharedMemory) {
  const int64_t files = OpenFiles();
  RunStages({1, 2, 3}, [](const EngineOptions& options, int, Communicator ranks) {
    Trainer trainer(options, ranks, Tensors({5000}), Constant(1));
    EXPECT_THAT(SharedMemoryNames(), IsEmpty());
    trainer.Step(Gradients({{1}}));
    EXPECT_TRUE(trainer.engine().Close().ok());
    EXPECT_THAT(SharedMemoryNames(), IsEmpty());
  });
  // A Create that fails on one rank.
  RunRanks(2, [](int rank, const Communicator& ranks) {
    const ModelSpec model = Tensors({rank + 1});
    EXPECT_FALSE(Engine::Create(OptionsOfStage(1), {ranks}, model.parameters, model.units).ok());
  });
  EXPECT_THAT(SharedMemoryNames(), IsEmpty());
  EXPECT_EQ(OpenFiles(), files);
}

// Two ranks that make an engine of 128 MiB of shared memory, in a process of their own.
pid_t StartCreating() {
  const pid_t child = fork();
  if (child != 0) return child;
  RunRanks(2, [](int, const Communicator& ranks) {
    const ModelSpec model = Tensors({int64_t{1} << 23});
    const auto engine = Engine::Create(OptionsOfStage(1), {ranks}, model.parameters, model.units);
    if (!engine.ok()) _exit(1);
  });
  _exit(0);
}

// Killed at moments all over the time that it takes.
TEST(OffloadCases, OFF_18_AKillInCreateLeavesNothing) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer starts no thread in a child of a process with threads";
#endif
  using Clock = std::chrono::steady_clock;
  int status = -1;
  const Clock::time_point start = Clock::now();
  waitpid(StartCreating(), &status, 0);
  const Clock::duration whole = Clock::now() - start;
  ASSERT_EQ(status, 0);
  constexpr int kKills = 20;
  int in_time = 0;
  for (int i = 0; i < kKills; ++i) {
    const pid_t child = StartCreating();
    std::this_thread::sleep_for(whole * i / kKills);
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    in_time += WIFSIGNALED(status) ? 1 : 0;
    EXPECT_THAT(SharedMemoryNames(child), IsEmpty()) << "after " << i << "/20 of Create";
  }
  EXPECT_GT(in_time, 0);
}

TEST(Lifetime, EnginesFollowEachOtherOnOneCommunicator) {
  RunStages({1, 2, 3}, [](const EngineOptions& options, int, Communicator ranks) {
    std::vector<float> first;
    for (int i = 0; i < 5; ++i) {
      Trainer trainer(options, ranks, Tensors({3000}), Constant(1));
      trainer.Step(Gradients({{0.5f}}));
      const std::vector<float> states = trainer.ReadStates();
      if (i == 0) first = states;
      EXPECT_EQ(states, first);
      if (i % 2 == 0) {
        EXPECT_TRUE(trainer.engine().Close().ok());
      }
    }
  });
}

// A communicator that an engine has is refused to another until it is closed, and serves that then,
// whenever the first one is destroyed.
TEST(Lifetime, ACommunicatorServesOneEngineAtATime) {
  RunStages({1, 2}, [](const EngineOptions& options, int, Communicator ranks) {
    const ModelSpec model = Tensors({3000});
    auto first = std::make_unique<Trainer>(options, ranks, model, Constant(1));
    first->Step(Gradients({{0.5f}}));
    const Status refused = Engine::Create(options, {ranks}, model.parameters, model.units).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(Text(refused), HasSubstr("communicators[0] is in use by another engine; Close"));
    first->Step(Gradients({{0.5f}}));
    EXPECT_TRUE(first->engine().Close().ok());
    Trainer second(options, ranks, model, Constant(1));
    second.Step(Gradients({{0.5f}}));
    first.reset();
    EXPECT_TRUE(second.Step(Gradients({{0.5f}})).applied);
  });
}

TEST(Lifetime, ACommunicatorThatWasMovedFromIsRefused) {
  Communicator first = SelfCommunicator();
  const Communicator taken = std::move(first);
  const Status refused = Engine::Create({}, {taken, first}, {}, {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(Text(refused), HasSubstr("communicators[1] is none"));
  RunRanks(2, [](int rank, const Communicator& ranks) {
    Communicator own = SelfCommunicator();
    if (rank == 1) const Communicator taken = std::move(own);
    const ModelSpec model = Tensors({300});
    const Status status =
        Engine::Create(OptionsOfStage(1), {ranks, own}, model.parameters, model.units).status();
    EXPECT_THAT(Text(status), HasSubstr("rank 1: communicators[1] is none"));
  });
}

// Gathers ahead of a pass that never comes do not make Close fail, nor end the communicator.
TEST(Lifetime, CloseWhileUnitsArePrefetched) {
  RunRanks(3, [](int, const Communicator& ranks) {
    EngineOptions options = OptionsOfStage(3);
    options.max_live_parameters_bytes = 3 * (int64_t{2} << 20);
    options.bucket_elems = 256;  // takes a while
    for (int i = 0; i < 4; ++i) {
      Trainer trainer(options, ranks, TensorsInUnits({100000, 100000, 100000}), Constant(1));
      Engine& engine = trainer.engine();
      const auto evaluate = [&](std::initializer_list<UnitId> units) {
        for (const UnitId unit : units) {
          ASSERT_TRUE(engine.Acquire(unit, AcquireMode::kEvaluate).ok());
          ASSERT_TRUE(engine.Release(unit).ok());
        }
      };
      evaluate({0, 1, 2});
      trainer.Step(Gradients({{1}, {1}, {1}}));
      evaluate({0});  // the others are on their way
      const Status closed = engine.Close();
      EXPECT_TRUE(closed.ok()) << closed;
    }
  });
}

TEST(Lifetime, EnginesSideBySideOnTwoCommunicators) {
  const std::vector<Communicator> second = ThreadCommunicators(2);
  RunRanks(2, [&](int rank, const Communicator& ranks) {
    Trainer one(OptionsOfStage(0), ranks, Tensors({3000}), Constant(1));
    Trainer two(OptionsOfStage(1), second[rank], Tensors({3000}), Constant(1));
    for (int step = 0; step < 3; ++step) {
      one.MicroBatch(Gradients({{0.5f}}));
      two.MicroBatch(Gradients({{0.5f}}));
      one.Step();
      two.Step();
    }
    EXPECT_EQ(one.ReadStates(), two.ReadStates());
  });
}

// A mistake in Create leaves the communicator usable.
TEST(Lifetime, ACreateThatFailsCanBeTriedAgain) {
  RunStages({1, 2, 3}, [](const EngineOptions& options, int rank, Communicator ranks) {
    ModelSpec model = Tensors({30});
    if (rank == 0) model.parameters[0].group = 1;
    const Status status = Engine::Create(options, {ranks}, model.parameters, model.units).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(Text(status), HasSubstr("rank 0: parameter a: group is 1"));
    Trainer trainer(options, ranks, Tensors({30}), Constant(1));
    EXPECT_TRUE(trainer.Step(Gradients({{1}})).applied);
  });
}

TEST(Lifetime, AfterCloseEveryCallSaysSo) {
  RunStages({1, 2}, [](const EngineOptions& options, int, Communicator ranks) {
    Trainer trainer(options, ranks, Tensors({30}), Constant(1));
    Engine& engine = trainer.engine();
    EXPECT_TRUE(engine.Close().ok());
    EXPECT_TRUE(engine.Close().ok());
    float value = 0;
    for (const Status& status :
         {engine.BeginMicroBatch(), engine.Acquire(0, AcquireMode::kForward), engine.Release(0),
          engine.GradReady(0), engine.SetGroup(0, {}), engine.Step().status(), engine.Quiesce(),
          engine.Read(0, StateKind::kMaster, 0, {&value, 1}),
          engine.Write(0, StateKind::kMaster, 0, {&value, 1})}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(Text(status), HasSubstr("closed"));
    }
    EXPECT_EQ(engine.TotalElements(), 30);
  });
}

// Closing in the middle of a window drops it, whatever is in flight; a rank that is still in it may
// hear that a peer has left, and nobody waits.
TEST(Lifetime, CloseInTheMiddleOfAWindow) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.bucket_elems = 256;
    options.communication_timeout_s = 600;
    Trainer trainer(options, ranks, TensorsInUnits({5000, 5000}), Constant(1));
    Status status = trainer.engine().BeginMicroBatch();
    for (UnitId unit = 1; unit >= 0 && status.ok(); --unit) {
      status = trainer.TryBackward(unit, Gradients({{1}, {1}}));
    }
    EXPECT_TRUE(status.ok() || absl::IsAborted(status)) << status;
    status = trainer.engine().Close();
    EXPECT_TRUE(status.ok() || absl::IsAborted(status)) << status;
    EXPECT_THAT(SharedMemoryNames(), IsEmpty());
  });
}

// Who closes at stage 3 and keeps the engine leaves nobody waiting for its part of a gather.
TEST(Lifetime, CloseInTheMiddleOfAWindowEndsPeersAcquires) {
  std::latch told(1);
  RunRanks(2, [&](int rank, const Communicator& ranks) {
    EngineOptions options = OptionsOfStage(3);
    options.communication_timeout_s = 60;
    const auto begin = std::chrono::steady_clock::now();
    Trainer trainer(options, ranks, TensorsInUnits({3000, 3000, 3000}), Constant(1));
    Engine& engine = trainer.engine();
    trainer.Step(Gradients({{1}, {1}, {1}}));
    ASSERT_TRUE(engine.BeginMicroBatch().ok());
    if (rank == 0) {
      EXPECT_TRUE(engine.Close().ok());
      return told.wait();
    }
    Status status;
    for (UnitId unit = 0; unit < 3 && status.ok(); ++unit) {
      status = engine.Acquire(unit, AcquireMode::kForward);
      if (status.ok()) status = engine.Release(unit);
    }
    told.count_down();
    EXPECT_THAT(Text(status), HasSubstr("rank 0"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
  });
}

// A model without anything to update: its steps do nothing.
TEST(Lifetime, ModelsWithoutWork) {
  RunStages({1, 2, 3}, [](EngineOptions options, int, Communicator ranks) {
    options.clip_grad_norm = 1.0;
    ModelSpec frozen = Tensors({30, 0});
    for (ParameterSpec& spec : frozen.parameters) spec.frozen = true;
    for (const ModelSpec& model : {frozen, Tensors({0, 0})}) {
      Trainer trainer(options, ranks, model, Constant(2));
      const StepStats stats = trainer.Step(Gradients({{}, {}}));
      EXPECT_TRUE(stats.applied);
      EXPECT_EQ(stats.grad_norm, 0.0);
      EXPECT_EQ(stats.clip_factor, 1.0);
      for (const float value : trainer.ReadAll()) EXPECT_EQ(value, 2.0f);
    }
    // Not even a unit that could report.
    Trainer trainer(options, ranks, ModelSpec(), Constant(2));
    EXPECT_EQ(trainer.TryStep(Gradients({})).status().code(),
              absl::StatusCode::kFailedPrecondition);
    EXPECT_TRUE(trainer.engine().Close().ok());
  });
}

// While a Step waits for a peer, another thread's call is told so, and disturbs nothing.
TEST(Lifetime, ASecondCallAtOneTimeIsRefused) {
  std::latch refused(1);
  RunRanks(2, [&](int rank, const Communicator& ranks) {
    Trainer trainer(OptionsOfStage(1), ranks, Tensors({300}), Constant(1));
    trainer.MicroBatch(Gradients({{1}}));
    if (rank == 1) {
      refused.wait();
      EXPECT_TRUE(trainer.Step().applied);
      return;
    }
    const auto told = [](const Status& status) {
      return absl::IsFailedPrecondition(status) &&
             Text(status).starts_with("another thread's call is under way");
    };
    std::thread other([&] {
      while (!told(trainer.engine().Quiesce())) std::this_thread::yield();
      refused.count_down();
    });
    StatusOr<StepStats> stats = trainer.engine().Step();
    while (told(stats.status())) stats = trainer.engine().Step();
    EXPECT_TRUE(stats.ok() && stats->applied) << stats.status();
    other.join();
  });
}

// A thread that looks on is served whatever the trainer does.
TEST(Lifetime, LookUpsWhileUnitsAreAddedAndMoved) {
  EngineOptions options = OptionsOfStage(1);
  options.notice = [](const std::string&) {};
  Trainer trainer(options, SelfCommunicator(), Tensors({300}), Constant(1));
  std::atomic<bool> done = false;
  std::thread other([&] {
    Engine& engine = trainer.engine();
    while (!done) {
      EXPECT_GT(engine.Memory().ModelBytes(), 0);
      EXPECT_GE(engine.TotalElements(), 300);
      EXPECT_EQ(engine.Parameter(0).shape.size(), 1u);
      EXPECT_EQ(*engine.FindParameter("a"), 0);
      EXPECT_EQ(engine.LossScale(), 1);
    }
  });
  for (int i = 0; i < 20; ++i) {
    const std::string name = "late" + std::to_string(i);
    const Status added = trainer.AddUnits({{{name, {10}}}, {{name, {name}, {}}}}, Constant(1));
    EXPECT_TRUE(added.ok()) << added;
    EXPECT_TRUE(trainer.engine().Move({}).ok());
  }
  done = true;
  other.join();
}

// Any thread may call, one call at a time.
TEST(Lifetime, CallsFromManyThreads) {
  RunStages({1, 2}, [](const EngineOptions& options, int, Communicator ranks) {
    Trainer trainer(options, ranks, TensorsInUnits({300, 40}), Constant(1));
    const auto elsewhere = [](const std::function<void()>& call) { std::thread(call).join(); };
    for (int step = 1; step <= 3; ++step) {
      elsewhere([&] { EXPECT_TRUE(trainer.engine().BeginMicroBatch().ok()); });
      elsewhere([&] { trainer.Backward(1, Gradients({{}, {1}})); });
      trainer.Backward(0, Gradients({{1}, {}}));
      elsewhere([&] { EXPECT_EQ(trainer.Step().step, step); });
    }
    elsewhere([&] { EXPECT_TRUE(trainer.engine().Close().ok()); });
  });
}

// A frozen parameter keeps what was written, and has no gradient and no moments.
TEST(Lifetime, FrozenParametersBesideTrainedOnes) {
  RunStages({1, 2, 3}, [](const EngineOptions& options, int, Communicator ranks) {
    ModelSpec model = Tensors({300, 40, 500});
    model.parameters[1].frozen = true;
    Trainer trainer(options, ranks, model, Constant(3));
    EXPECT_EQ(trainer.engine().Gradient(1).data, nullptr);
    trainer.Step(Gradients({{1}, {}, {2}}));
    EXPECT_EQ(trainer.Read(1), std::vector<float>(40, 3.0f));
    EXPECT_NE(trainer.Read(0), std::vector<float>(300, 3.0f));
    float value = 0;
    const Status status = trainer.engine().Read(1, StateKind::kMoment1, 0, {&value, 1});
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Text(status), HasSubstr("parameter b is frozen"));
  });
}

}  // namespace
}  // namespace zerohold::testing
