// What StepStats tells.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

// Every stage sends the same: to each other rank, its part of the gradients, then of what the stage
// gathers.
TEST(Stats, SentBytes) {
  for (const int world : {1, 2, 3, 4}) {
    for (const int stage : {0, 1}) {
      std::vector<int64_t> reduced(world);
      std::vector<int64_t> gathered(world);
      RunRanks(world, [&](int rank, const Communicator& ranks) {
        EngineOptions options = OptionsOfStage(stage);
        options.bucket_elems = 1024;
        Trainer trainer(options, ranks, TensorsInUnits({256 * 50, 256 * 3}), Constant(1));
        for (int step = 0; step < 3; ++step) {
          const StepStats stats = trainer.Step(Gradients({{1}, {1}}));
          reduced[rank] = stats.sent_bytes[static_cast<int>(Traffic::kReduceScatter)];
          gathered[rank] = stats.sent_bytes[static_cast<int>(Traffic::kAllGather)];
        }
      });
      const int64_t expected = int64_t{256} * 53 * 4 * (world - 1);
      int64_t reduced_sum = 0;
      int64_t gathered_sum = 0;
      for (int rank = 0; rank < world; ++rank) {
        reduced_sum += reduced[rank];
        gathered_sum += gathered[rank];
      }
      EXPECT_EQ(reduced_sum, expected) << "world " << world << " stage " << stage;
      EXPECT_EQ(gathered_sum, expected) << "world " << world << " stage " << stage;
    }
  }
}

// The rate is group 0's with the schedule's factor, by applied steps: a skip does not advance it.
TEST(Stats, LearningRateAndSteps) {
  RunStages({1, 2}, [](EngineOptions options, int, Communicator ranks) {
    options.groups = {{.learning_rate = 0.4}, {.learning_rate = 8.0}};
    options.schedule = {.kind = ScheduleKind::kLinear, .warmup_steps = 4, .total_steps = 8};
    ModelSpec model = Tensors({1, 1});
    model.parameters[1].group = 1;
    Trainer trainer(options, ranks, model, Constant(0));
    EXPECT_NEAR(trainer.Step(Gradients({{1}, {1}})).learning_rate, 0.1, 1e-12);
    EXPECT_NEAR(trainer.Read(0)[0], -0.1, 1e-6);
    EXPECT_NEAR(trainer.Read(1)[0], -2.0, 1e-5);
    const float infinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(trainer.Step(Gradients({{infinity}, {1}})).step, 1);
    const double expected[] = {0.2, 0.3, 0.4, 0.3, 0.2, 0.1, 0.0, 0.0};
    for (int step = 2; step <= 9; ++step) {
      const StepStats stats = trainer.Step(Gradients({{1}, {1}}));
      EXPECT_EQ(stats.step, step);
      EXPECT_EQ(stats.loss_scale, 1.0);
      EXPECT_NEAR(stats.learning_rate, expected[step - 2], 1e-12);
    }
  });
}

// A wait for a slow peer is counted, and counted as one.
TEST(Stats, StallsAreByCause) {
  RunRanks(2, [](int rank, const Communicator& ranks) {
    Trainer trainer(OptionsOfStage(1), ranks, Tensors({1000}), Constant(1));
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const StepStats stats = trainer.Step(Gradients({{1}}));
    for (const int64_t stall_ns : stats.stall_ns) EXPECT_GE(stall_ns, 0);
    if (rank == 0) {
      EXPECT_GE(stats.stall_ns[static_cast<int>(Stall::kReduce)], 50'000'000);
    }
  });
}

// What the end of a step waits for follows from its plan: at stage 3 no parameters are gathered in
// it, so the time of stores is the disk's.
TEST(Stats, TheEndOfAStepIsOfWhatItDoes) {
  for (const bool disk : {false, true}) {
    for (const int stage : {1, 3}) {
      RunRanks(2, [&](int rank, const Communicator& ranks) {
        SCOPED_TRACE(::testing::Message()
                     << "disk " << disk << " stage " << stage << " rank " << rank);
        EngineOptions options = OptionsOfStage(stage);
        if (disk) {
          options.offload.nvme_paths = {std::filesystem::current_path()};
          options.offload.write_rate = 4e6;  // 64 KiB of moments a rank: 16 ms
        }
        options.record_elems = 8192;
        Trainer trainer(options, ranks, Tensors({2 * 8192}), Constant(1));
        const StepStats stats = trainer.Step(Gradients({{1}}));
        const auto stall = [&](Stall cause) { return stats.stall_ns[static_cast<int>(cause)]; };
        EXPECT_EQ(stall(Stall::kGather) > 0, stage == 1);
        EXPECT_GT(stall(Stall::kUpdate), 0);
        if (disk) {
          EXPECT_GE(stall(stage == 1 ? Stall::kGather : Stall::kDisk), 10'000'000);
        } else {
          EXPECT_EQ(stall(Stall::kDisk), 0);
        }
      });
    }
  }
}

// Each rank writes its own trace at Close.
TEST(Stats, TraceOfEachRank) {
  const std::string folder = ::testing::TempDir();
  RunRanks(2, [&](int rank, const Communicator& ranks) {
    EngineOptions options = OptionsOfStage(1);
    options.trace_path = folder + "/stats_test_trace." + std::to_string(rank) + ".json";
    Trainer trainer(options, ranks, TensorsInUnits({1000, 30}), Constant(1));
    trainer.Step(Gradients({{1}, {1}}));
    ASSERT_TRUE(trainer.engine().Close().ok());
    std::ifstream file(options.trace_path);
    const auto trace = nlohmann::json::parse(file, nullptr, false);
    ASSERT_FALSE(trace.is_discarded());
    const std::string text = trace.dump();
    for (const char* name : {"Step", "ReduceScatter", "agreement", "Update", "AllGather"}) {
      EXPECT_NE(text.find(name), std::string::npos) << name;
    }
    std::filesystem::remove(options.trace_path);
  });
}

// A path that cannot be written is told before anything is trained, to all ranks.
TEST(Stats, ATraceThatCannotBeWritten) {
  RunRanks(2, [](int rank, const Communicator& ranks) {
    EngineOptions options = OptionsOfStage(1);
    if (rank == 1) options.trace_path = "/nonexistent/folder/trace.json";
    const ModelSpec model = Tensors({10});
    EXPECT_EQ(Engine::Create(options, {ranks}, model.parameters, model.units).status(),
              absl::InvalidArgumentError(
                  "rank 1: trace_path /nonexistent/folder/trace.json cannot be written (No such "
                  "file or directory); give a file in a folder that can"));
  });
}

TEST(Stats, DescribePlan) {
  const auto plan = [](int stage) {
    std::string text;
    RunRanks(2, [&](int rank, const Communicator& ranks) {
      Trainer trainer(OptionsOfStage(stage), ranks, TensorsInUnits({1000, 30}), Constant(1));
      if (rank == 0) text = trainer.engine().DescribePlan();
    });
    return text;
  };
  EXPECT_NE(plan(1).find("AllGather parameter bucket 0 (unit_a)"), std::string::npos) << plan(1);
  EXPECT_EQ(plan(1).find("AllGather gradient"), std::string::npos);
  EXPECT_NE(plan(0).find("AllGather gradient bucket 1 (unit_b)"), std::string::npos) << plan(0);
  EXPECT_EQ(plan(0).find("AllGather parameter"), std::string::npos);
}

}  // namespace
}  // namespace zerohold::testing
