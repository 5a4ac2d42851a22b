// Data loaders fork: what a child may not do to the engine of its parent, and what it still sees.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int kPatienceMs = 10'000;

// What `body` writes in a forked child, line by line; a child that hangs or dies is a line too. Not
// a death test: the child keeps the parent's engines, and its threads are gone.
std::vector<std::string> LinesOfChild(const std::function<std::vector<std::string>()>& body) {
  int ends[2];
  if (pipe(ends) != 0) return {"no pipe"};
  const pid_t child = fork();
  if (child == 0) {
    for (const std::string& line : body()) dprintf(ends[1], "%s\n", line.c_str());
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  bool hangs = false;
  for (char buffer[4096];;) {
    pollfd readable = {ends[0], POLLIN, 0};
    hangs = poll(&readable, 1, kPatienceMs) <= 0;
    const ssize_t got = hangs ? 0 : read(ends[0], buffer, sizeof(buffer));
    if (got <= 0) break;
    text.append(buffer, got);
  }
  if (hangs) kill(child, SIGKILL);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  std::vector<std::string> lines;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1) {
    lines.push_back(text.substr(begin, end - begin));
  }
  if (hangs) lines.push_back("hangs");
  if (WIFSIGNALED(status)) lines.push_back("killed by " + std::to_string(WTERMSIG(status)));
  return lines;
}

std::vector<std::string> EveryCall(Engine& engine) {
  float value = 0;
  std::vector<std::string> lines;
  for (const Status& status : {engine.BeginMicroBatch(), engine.Acquire(0, AcquireMode::kForward),
                               engine.Acquire(0, AcquireMode::kBackward), engine.GradReady(0),
                               engine.Release(0), engine.SetGroup(0, {}), engine.Step().status(),
                               engine.Read(0, StateKind::kMaster, 0, {&value, 1}),
                               engine.Write(0, StateKind::kMaster, 0, {&value, 1}),
                               engine.Quiesce(), engine.AdoptParameters(), engine.Close()}) {
    lines.push_back(status.ToString());
  }
  return lines;
}

constexpr int kCalls = 12;

std::string ByParent() { return "process " + std::to_string(getpid()) + ","; }

// In the middle of a window, with reductions and gathers in flight.
void ForkInAWindow(const EngineOptions& options, int, const Communicator& ranks) {
  const auto model = TensorsInUnits({3000, 500});
  const auto gradients = Gradients({{1}, {2}});
  Trainer reference(options, ranks, model, Constant(1));
  reference.Step(gradients);
  reference.Step(gradients);
  const std::vector<float> expected = reference.ReadStates();
  ASSERT_TRUE(reference.engine().Close().ok());

  Trainer trainer(options, ranks, model, Constant(1));
  trainer.Step(gradients);
  ASSERT_TRUE(trainer.engine().BeginMicroBatch().ok());
  trainer.Backward(1, gradients);
  const auto told = LinesOfChild([&] { return EveryCall(trainer.engine()); });
  EXPECT_THAT(told, SizeIs(kCalls));
  EXPECT_THAT(told, Each(AllOf(HasSubstr("FAILED_PRECONDITION"), HasSubstr(ByParent()),
                               HasSubstr("forked from it"), HasSubstr("create one here"))));
  trainer.Backward(0, gradients);
  EXPECT_TRUE(trainer.Step().applied);
  EXPECT_EQ(trainer.ReadStates(), expected);
  EXPECT_TRUE(trainer.engine().Close().ok());
}

TEST(Fork, AChildIsToldAndTheParentGoesOn) { RunStages({1, 2, 3}, ForkInAWindow); }

// The child leaves by the way of its objects: nothing is joined, cancelled or unlinked.
TEST(Fork, AnEngineThatGoesAwayInAChildTakesNothingWithIt) {
  RunStages({1, 2}, [](const EngineOptions& options, int, Communicator ranks) {
    const ModelSpec model = TensorsInUnits({3000, 500});
    auto made = Engine::Create(options, {ranks}, model.parameters, model.units);
    ASSERT_TRUE(made.ok()) << made.status();
    std::unique_ptr<Engine> engine = *std::move(made);
    ASSERT_TRUE(engine->BeginMicroBatch().ok());
    ASSERT_TRUE(engine->Acquire(1, AcquireMode::kBackward).ok());
    ASSERT_TRUE(engine->GradReady(1).ok());
    EXPECT_THAT(LinesOfChild([&] {
                  engine.reset();
                  return std::vector<std::string>{"gone"};
                }),
                ::testing::ElementsAre("gone"));
    ASSERT_TRUE(engine->Release(1).ok());
    EXPECT_TRUE(engine->Step().ok());
    EXPECT_TRUE(engine->Close().ok());
  });
}

// The one way to train in a child.
TEST(Fork, AChildMayHaveAnEngineOfItsOwn) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer starts no thread in a child of a process with threads";
#endif
  for (const int stage : {0, 1, 2, 3}) {
    const auto train = [&] {
      Trainer trainer(OptionsOfStage(stage), SelfCommunicator(), Tensors({300}), Constant(1));
      EXPECT_TRUE(trainer.Step(Gradients({{0.5f}})).applied);
      return std::vector<std::string>{std::to_string(trainer.Read(0)[299])};
    };
    Trainer parent(OptionsOfStage(stage), SelfCommunicator(), Tensors({300}), Constant(1));
    parent.Step(Gradients({{0.5f}}));
    EXPECT_EQ(LinesOfChild(train), train());
    EXPECT_TRUE(parent.Step(Gradients({{0.5f}})).applied);
  }
}

}  // namespace
}  // namespace zerohold::testing
