// COM-12: a caller that started MPI itself at the lowest thread level, gives a part of the job and
// finalizes MPI itself. Collectives run inside the engine's calls, which is said once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/ranks.h"
#include "tests/support/toy9.h"
#include "tests/support/trainer.h"
#include "zerohold/mpi.h"

namespace zerohold::testing {
namespace {

TEST(CommunicationCases, COM_12) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const bool in_part = rank < 2;
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, in_part ? 0 : MPI_UNDEFINED, 0, &part);
  if (!in_part) return;  // the third rank makes no call of ours
  StatusOr<Communicator> ranks = MpiCommunicator(part);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  MPI_Comm_free(&part);
  for (const int stage : {0, 1}) {
    std::vector<std::string> said;
    EngineOptions options = Toy9::Options(OptionsOfStage(stage));
    options.notice = [&](const std::string& text) { said.push_back(text); };
    for (const int micro_batches : {1, 3}) {
      Toy9::Check(Toy9::Train(options, *ranks, Toy9::Model(), micro_batches));
    }
    if (rank > 0) {
      EXPECT_THAT(said, ::testing::IsEmpty());
    } else {
      EXPECT_THAT(said, ::testing::SizeIs(2));  // two engines
      EXPECT_THAT(said, ::testing::Each(::testing::HasSubstr("MPI_THREAD_MULTIPLE")));
    }
  }
}

// Units that come later, where all collectives run inside the calls.
TEST(PartitioningCases, PAR_14) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  StatusOr<Communicator> ranks = MpiCommunicator(MPI_COMM_WORLD);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  for (const int stage : {0, 1, 2, 3}) {
    std::vector<std::string> said;
    EngineOptions options = OptionsOfStage(stage);
    options.groups[0].learning_rate = 0.1;
    options.notice = [&](const std::string& text) { said.push_back(text); };
    Trainer trainer(options, *ranks, Tensors({3000}), Constant(1));
    for (int step = 0; step < 3; ++step) trainer.Step(Gradients({{0.5f}}));
    ModelSpec late = {{{"late", {5000}}}, {{"later", {"late"}, {}}}};
    if (rank == 1) late.parameters[0].frozen = true;
    EXPECT_EQ(trainer.AddUnits(late, Constant(1)).code(), absl::StatusCode::kFailedPrecondition);
    late.parameters[0].frozen = false;
    ASSERT_TRUE(trainer.AddUnits(late, Constant(1)).ok());
    trainer.Step(Gradients({{0.5f}, {0.5f}}));
    for (const float value : trainer.Read(0)) ASSERT_NEAR(value, 0.6, 1e-6);
    for (const float value : trainer.Read(1)) ASSERT_NEAR(value, 0.9, 1e-6);
    EXPECT_TRUE(trainer.engine().Close().ok());
    EXPECT_THAT(said, ::testing::SizeIs(rank == 0 ? 1 : 0));
  }
}

// Where Step waits for what it started, it also tells of a disk that failed under it.
TEST(OffloadCases, OverlapThatCannotBe) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  StatusOr<Communicator> ranks = MpiCommunicator(MPI_COMM_WORLD);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  EngineOptions options = OptionsOfStage(1);
  options.overlap_next_forward = true;
  options.bucket_elems = options.record_elems = 512;
  options.offload.nvme_paths = {std::filesystem::current_path()};
  options.notice = [](const std::string&) {};
  if (rank == 1) options.offload.faults = "enospc=1";
  Trainer trainer(options, *ranks, Tensors({3 * 512}), Constant(1));
  const Status failed = trainer.TryStep(Gradients({{0.5f}})).status();
  EXPECT_TRUE(absl::IsResourceExhausted(failed)) << failed;
  EXPECT_THAT(std::string(failed.message()), ::testing::HasSubstr("rank 1: "));
}

}  // namespace
}  // namespace zerohold::testing

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int level = -1;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &level);
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return failed;
}
