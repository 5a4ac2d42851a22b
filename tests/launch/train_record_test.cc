// What a run leaves: the log, the trace, the lines for people; and a run without mpirun.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/launch/program.h"

namespace zerohold::launch_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;

std::vector<std::string> Keys(const nlohmann::json& object) {
  std::vector<std::string> keys;
  for (const auto& item : object.items()) keys.push_back(item.key());
  return keys;
}

TEST(TrainRecord, LogHasOneObjectAStepAndAFinalOne) {
  const std::vector<nlohmann::json> log = TrainAndReadLog(2, "--steps 3");
  ASSERT_EQ(log.size(), 4u);
  for (int step = 1; step <= 3; ++step) {
    const nlohmann::json& line = log[step - 1];
    EXPECT_THAT(Keys(line),
                testing::UnorderedElementsAre("step", "loss", "grad_norm", "learning_rate",
                                              "applied", "loss_scale", "disk_read_bytes",
                                              "disk_written_bytes", "tokens_per_s"));
    EXPECT_EQ(line.at("step"), step);
    EXPECT_TRUE(line.at("applied").get<bool>());
    EXPECT_EQ(line.at("loss_scale"), 1.0);
    EXPECT_EQ(line.at("disk_read_bytes"), 0);
    EXPECT_EQ(line.at("disk_written_bytes"), 0);
    EXPECT_GT(line.at("grad_norm"), 0.0);
    EXPECT_GT(line.at("learning_rate"), 0.0);
    EXPECT_GT(line.at("tokens_per_s"), 0.0);
  }
  // 256 bytes, even odds: ln 256 and a little.
  EXPECT_NEAR(log[0].at("loss"), 5.545, 0.1);
  EXPECT_THAT(Keys(log[3]), testing::UnorderedElementsAre("final", "steps", "skipped", "loss",
                                                          "parameters_hash"));
  EXPECT_TRUE(log[3].at("final").get<bool>());
  EXPECT_EQ(log[3].at("steps"), 3);
  EXPECT_EQ(log[3].at("skipped"), 0);
  EXPECT_EQ(log[3].at("loss"), log[2].at("loss"));
  EXPECT_THAT(HashOf(log), MatchesRegex("[0-9a-f]{16}"));
}

TEST(TrainRecord, EvaluationsAreToldAndChangeNothing) {
  const std::string every = "--evaluate-every 2 ",
                    flags = "--steps 5 --accumulate 2 --zero-stage 3 ";
  const std::vector<nlohmann::json> log = TrainAndReadLog(2, flags + every);
  ASSERT_EQ(log.size(), 6u);
  for (int step = 1; step <= 5; ++step) {
    EXPECT_EQ(log[step - 1].contains("evaluation_loss"), step % 2 == 0) << step;
  }
  // The same samples each time, so a trained model does better on them.
  EXPECT_LT(log[3].at("evaluation_loss"), log[1].at("evaluation_loss"));
  EXPECT_EQ(HashOf(log), HashOf(TrainAndReadLog(2, flags)));
  // The same samples for one global batch, and through torch alone.
  const std::vector<nlohmann::json> torch =
      TrainAndReadLog(4, "--steps 5 --optimizer torch --recompute " + every);
  ASSERT_EQ(torch.size(), 6u);
  EXPECT_NEAR(log[3].at("evaluation_loss"), torch[3].at("evaluation_loss"), 1e-4);
}

TEST(TrainRecord, PeopleAreToldOfSkippedSteps) {
  const Outcome outcome =
      RunShell(TinyTrain("--dtype fp16 --loss-scale 1e30 --steps 3 --zero-stage 3"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("2 skipped, loss scale 1e+30"),
                                 HasSubstr("after 3 steps (3 of them skipped)")));
}

TEST(TrainRecord, TraceIsWrittenByEachRank) {
  const std::string trace = TemporaryPath("trace");
  const Outcome outcome = RunShell(Mpirun(2) + TinyTrain("--steps 2 --trace " + trace + ".json"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const std::string& path : {trace + ".json", trace + ".1.json"}) {
    std::ifstream in(path);
    const nlohmann::json json = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
    ASSERT_FALSE(json.is_discarded()) << path;
    std::set<std::string> kinds;
    for (const nlohmann::json& event : json["traceEvents"]) kinds.insert(event.value("cat", ""));
    EXPECT_TRUE(kinds.contains("ReduceScatter")) << path;
    EXPECT_TRUE(kinds.contains("Update")) << path;
    std::remove(path.c_str());
  }
}

TEST(TrainRecord, WithoutMpirunItIsAWorldOfOne) {
  const Outcome outcome = RunShell(TinyTrain("--steps 3"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("1 rank,"), HasSubstr("unigram entropy"), HasSubstr("step 1/3  loss"),
                    HasSubstr("step 3/3  loss"), HasSubstr("tokens/s"), HasSubstr("left")));
  const std::string hash = HashOf(TrainAndReadLog(1, "--steps 3"));
  EXPECT_THAT(outcome.out, HasSubstr("parameters_hash " + hash));
  EXPECT_EQ(outcome.out.find('\r'), std::string::npos);
}

TEST(TrainRecord, OnATerminalThereIsABar) {
  const std::string script = "script -qec '" + Mpirun(2) + TinyTrain("--steps 3") + "' /dev/null";
  if (RunShell("command -v script").exit_code != 0)
    GTEST_SKIP() << "no `script` to make a terminal with";
  const Outcome outcome = RunShell(script);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("\r["), HasSubstr("] 3/3  loss")));
}

TEST(TrainRecord, MoreRanksThanElementsOfATensorIsOrdinary) {
  const std::string flags = "--width 1 --heads 1 --micro-batch 1 --steps 2 ";
  const std::string hash = HashOf(TrainAndReadLog(5, flags + "--zero-stage 1"));
  EXPECT_EQ(hash.size(), 16u);
  EXPECT_EQ(HashOf(TrainAndReadLog(5, flags + "--zero-stage 0")), hash);
}

}  // namespace
}  // namespace zerohold::launch_test
