// The engine over MPI, as many ranks as mpirun starts: the same bits as a world of threads of the
// same size, which rank 0 plays, for every stage, bucket and number of threads; and ranks that
// differ or leave.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>

#include "tests/support/ranks.h"
#include "tests/support/toy9.h"
#include "tests/support/trainer.h"
#include "zerohold/mpi.h"

namespace zerohold::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string Text(const Status& status) { return std::string(status.message()); }

Communicator World() {
  StatusOr<Communicator> world = MpiCommunicator(MPI_COMM_WORLD);
  EXPECT_TRUE(world.ok()) << world.status();
  return *world;
}

ModelSpec Model() {
  return {{{"embedding", {37, 29}},
           {"weight", {1000, 3}},
           {"bias", {7}},
           {"empty", {0, 8}},
           {"frozen", {65}, DType::kFloat32, 0, true},
           {"head", {}}},
          {{"in", {"embedding"}, {}},
           {"block", {"weight", "bias", "empty", "frozen"}, {}},
           {"out", {"head"}, {"embedding"}}}};
}

// Plain arithmetic of rank, values, step and micro-batch.
GradientFunction Waves(int rank, int batch) {
  return [=](ParameterId id, std::span<const float> values, std::span<float> gradient) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      const auto phase = static_cast<float>((i * 7 + id * 13 + rank * 5 + batch * 3) % 97);
      gradient[i] += 0.1f * values[i] + 0.01f * (phase - 48.0f);
    }
  };
}

struct Result {
  std::vector<float> values;  // masters, then first moments
  std::vector<double> norms;
};

Result Train(const EngineOptions& options, const Communicator& ranks) {
  const ModelSpec model = Model();
  Trainer trainer(options, ranks, model, [](ParameterId id, int64_t i) {
    return static_cast<float>((id * 50 + i) % 31) / 16.0f - 1.0f;
  });
  Result result;
  for (int step = 0; step < 3; ++step) {
    trainer.MicroBatch(Waves(ranks.rank(), 2 * step), false);
    trainer.MicroBatch(Waves(ranks.rank(), 2 * step + 1), true);
    result.norms.push_back(trainer.Step().grad_norm);
  }
  result.values = trainer.ReadAll();
  for (size_t id = 0; id < model.parameters.size(); ++id) {
    if (model.parameters[id].frozen) continue;
    const auto moments = trainer.Read(static_cast<ParameterId>(id), StateKind::kMoment1);
    result.values.insert(result.values.end(), moments.begin(), moments.end());
  }
  EXPECT_TRUE(trainer.engine().Close().ok());
  return result;
}

EngineOptions Options(int stage) {
  EngineOptions options = OptionsOfStage(stage);
  options.groups[0].learning_rate = 0.01;
  options.groups[0].weight_decay = 0.1;
  options.clip_grad_norm = 1.0;
  options.update_threads = 1;
  options.communication_timeout_s = 60.0;
  return options;
}

// What rank 0 has, on every rank.
void BroadcastResult(Result& result) {
  MPI_Bcast(result.values.data(), static_cast<int>(result.values.size()), MPI_FLOAT, 0,
            MPI_COMM_WORLD);
  MPI_Bcast(result.norms.data(), static_cast<int>(result.norms.size()), MPI_DOUBLE, 0,
            MPI_COMM_WORLD);
}

TEST(MpiEngine, StagesBucketsAndThreadsGiveTheBitsOfAThreadWorld) {
  const Communicator world = World();
  Result reference = Train(Options(0), world);  // for its sizes
  if (world.rank() == 0) {
    RunRanks(world.size(), [&](int rank, const Communicator& ranks) {
      Result result = Train(Options(0), ranks);
      if (rank == 0) reference = std::move(result);
    });
  }
  BroadcastResult(reference);
  for (const int stage : {0, 1}) {
    for (const int64_t bucket : {256, 1 << 20}) {
      for (const int threads : {1, 3}) {
        EngineOptions options = Options(stage);
        options.bucket_elems = bucket;
        options.record_elems = bucket == 256 ? 512 : 1 << 18;
        options.update_threads = threads;
        options.check_collective_order = threads == 1;
        const Result result = Train(options, world);
        EXPECT_EQ(result.norms, reference.norms);
        ASSERT_EQ(result.values.size(), reference.values.size());
        EXPECT_EQ(std::memcmp(result.values.data(), reference.values.data(),
                              result.values.size() * sizeof(float)),
                  0)
            << "stage " << stage << " bucket " << bucket << " threads " << threads;
      }
    }
  }
}

TEST(NumericsCases, NUM_34) {
  const Communicator world = World();
  for (const int stage : {0, 1}) {
    Toy9::Check(Toy9::Train(Toy9::Options(Options(stage)), world, Toy9::Model(), 1));
  }
}

// Units that come later give the same bits at every stage, and are refused alike where ranks
// differ.
TEST(PartitioningCases, PAR_14) {
  const Communicator world = World();
  std::vector<float> reference;
  for (const int stage : {0, 1, 2, 3}) {
    EngineOptions options = Options(stage);
    options.max_micro_batches = 1;
    options.bucket_elems = 700;
    Trainer trainer(options, world, Tensors({3000, 7}), Constant(1));
    for (int step = 0; step < 3; ++step) trainer.Step(Waves(world.rank(), step));
    ModelSpec late = {{{"late", {5000}}, {"bias", {13}}}, {{"later", {"late", "bias"}, {"a"}}}};
    if (world.size() > 1) {
      if (world.rank() == 1) late.units[0].uses.clear();
      const Status status = trainer.AddUnits(late, Constant(1));
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(Text(status), AllOf(HasSubstr("rank 0 has"), HasSubstr("rank 1 has")));
      late.units[0].uses = {"a"};
    }
    ASSERT_TRUE(trainer.AddUnits(late, Constant(1)).ok());
    for (int step = 3; step < 6; ++step) trainer.Step(Waves(world.rank(), step));
    const std::vector<float> states = trainer.ReadStates();
    if (stage == 0) reference = states;
    EXPECT_EQ(states, reference) << "stage " << stage;
    EXPECT_TRUE(trainer.engine().Close().ok());
  }
}

// Over real processes: the same refusal on all, with both names, in seconds.
TEST(PartitioningCases, PAR_16) {
  const Communicator world = World();
  if (world.size() < 2) GTEST_SKIP() << "two ranks or more can differ";
  const bool differs = world.rank() == world.size() - 1;
  const std::string last = "rank " + std::to_string(world.size() - 1) + " has";
  const auto begin = std::chrono::steady_clock::now();
  for (const bool one_less : {false, true}) {
    ModelSpec model = Tensors({5, 5, 2});
    if (differs && !one_less) std::swap(model.parameters[0], model.parameters[1]);
    if (differs && one_less) model.parameters.pop_back(), model.units[0].parameters.pop_back();
    const Status status =
        Engine::Create(Options(1), {world}, model.parameters, model.units).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(Text(status),
                AllOf(HasSubstr("rank 0 has"), HasSubstr(last), HasSubstr(one_less ? "c" : "\"a\""),
                      HasSubstr(one_less ? "unit 0" : "\"b\"")));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  Toy9::Check(Toy9::Train(Toy9::Options(Options(1)), world, Toy9::Model(), 1));  // and goes on
}

// An overflow on one rank is everybody's.
TEST(NumericsCases, NUM_14) {
  const Communicator world = World();
  for (const int stage : {0, 1}) {
    Trainer trainer(Options(stage), world, Tensors({10}), Constant(1));
    const std::vector<float> before = trainer.ReadStates();
    std::vector<float> bad(10, 1.0f);
    if (world.rank() == world.size() - 1) bad[9] = std::numeric_limits<float>::infinity();
    const StepStats stats = trainer.Step(Gradients({bad}));
    EXPECT_FALSE(stats.applied);
    EXPECT_EQ(stats.skip_reason, SkipReason::kNonFiniteGradient);
    EXPECT_EQ(trainer.ReadStates(), before);
    EXPECT_EQ(trainer.Step(Gradients({{1}})).step, 1);
  }
}

// A part of the job trains; the other rank makes no call of ours.
TEST(CommunicationCases, COM_12) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size < 3) GTEST_SKIP() << "two of three ranks or more";
  const bool in_part = rank < 2;
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, in_part ? 0 : MPI_UNDEFINED, -rank, &part);
  if (!in_part) return;
  StatusOr<Communicator> ranks = MpiCommunicator(part);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  MPI_Comm_free(&part);
  EXPECT_EQ(ranks->rank(), 1 - rank);
  for (const int stage : {0, 1}) {
    Toy9::Check(Toy9::Train(Toy9::Options(Options(stage)), *ranks, Toy9::Model(), 2));
  }
}

// Rank 1 leaves in step 3 with a reduction in flight: it ends at once, its peers with its name, and
// MPI still works for the next engine.
TEST(CommunicationCases, COM_02) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (size < 2) GTEST_SKIP() << "somebody must stay";
  for (const int stage : {0, 1}) {
    const auto begin = std::chrono::steady_clock::now();
    {
      const Communicator world = World();
      EngineOptions options = Options(stage);
      options.communication_timeout_s = world.rank() == 1 ? 600.0 : 1.0;
      options.bucket_elems = 1024;
      // Above and below what MPI sends eagerly.
      Trainer trainer(options, world, TensorsInUnits({100000, 300}), Constant(1));
      const auto gradients = Gradients({{1}, {2}});
      for (int step = 1; step < 3; ++step) trainer.Step(gradients);
      if (world.rank() == 1) {
        ASSERT_TRUE(trainer.engine().BeginMicroBatch().ok());
        EXPECT_TRUE(trainer.TryBackward(1, gradients).ok());
        trainer.engine().Close().IgnoreError();
      } else {
        const Status status = trainer.TryStep(gradients).status();
        EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsAborted(status)) << status;
        EXPECT_THAT(Text(status), HasSubstr("rank 1"));
        EXPECT_EQ(trainer.engine().Close(), status);
      }
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
    MPI_Barrier(MPI_COMM_WORLD);
    Toy9::Check(Toy9::Train(Toy9::Options(Options(stage)), World(), Toy9::Model(), 1));
  }
}

}  // namespace
}  // namespace zerohold::testing
