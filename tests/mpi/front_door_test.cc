// The public handle on MPI, as the trainer's main sees it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "src/comm/communicator.h"
#include "zerohold/mpi.h"

namespace zerohold {
namespace {

using testing::HasSubstr;

struct World {
  World() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
  }
  int rank = 0;
  int size = 0;
};

// The local rank that MpiCommunicator finds, and how many ranks of the job warned about the
// environment.
std::pair<int, int> LocalRankAndWarnings(MPI_Comm comm) {
  testing::internal::CaptureStderr();
  const auto communicator = MpiCommunicator(comm);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(communicator.ok()) << communicator.status();
  int warnings = text.empty() ? 0 : 1;
  if (warnings > 0) {
    EXPECT_THAT(text, HasSubstr("the variable is ignored\n"));
    EXPECT_EQ(text.find('\n'), text.size() - 1);
  }
  MPI_Allreduce(MPI_IN_PLACE, &warnings, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  return {communicator->local_rank(), warnings};
}

TEST(CommunicationCases, COM_04) {
  const World world;
  const std::string right = std::to_string(world.rank);
  unsetenv("OMPI_COMM_WORLD_LOCAL_RANK");
  EXPECT_EQ(LocalRankAndWarnings(MPI_COMM_WORLD), std::pair(world.rank, 0));
  setenv("OMPI_COMM_WORLD_LOCAL_RANK", right.c_str(), 1);
  EXPECT_EQ(LocalRankAndWarnings(MPI_COMM_WORLD), std::pair(world.rank, 0));
  setenv("SLURM_LOCALID", "7", 1);
  EXPECT_EQ(LocalRankAndWarnings(MPI_COMM_WORLD), std::pair(world.rank, 1));
  unsetenv("SLURM_LOCALID");
  setenv("LOCAL_RANK", "0", 1);  // right on rank 0
  EXPECT_EQ(LocalRankAndWarnings(MPI_COMM_WORLD), std::pair(world.rank, world.size > 1 ? 1 : 0));
  unsetenv("LOCAL_RANK");
}

TEST(CommunicationCases, COM_04_APartOfTheJobHasOtherLocalRanks) {
  const World world;
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world.rank % 2, -world.rank, &part);
  int rank = 0;
  MPI_Comm_rank(part, &rank);
  EXPECT_EQ(LocalRankAndWarnings(part), std::pair(rank, 0));
  MPI_Comm_free(&part);
}

TEST(MpiCommunicator, AgreesAndLeavesTheCallersMessagesAlone) {
  const World world;
  auto communicator = MpiCommunicator(MPI_COMM_WORLD);
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  // A receive that would take any message of the caller's communicator.
  int token = -1;
  MPI_Request request;
  MPI_Irecv(&token, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
  const bool last = world.rank == world.size - 1;
  const std::string name = "rank " + std::to_string(world.size - 1) + ": full";
  EXPECT_EQ(communicator->Agree(last ? absl::ResourceExhaustedError("full") : absl::OkStatus()),
            absl::ResourceExhaustedError(name));
  EXPECT_EQ(token, -1);
  MPI_Barrier(MPI_COMM_WORLD);  // nobody sends before all have looked
  MPI_Send(&world.rank, 1, MPI_INT, (world.rank + 1) % world.size, 5, MPI_COMM_WORLD);
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  EXPECT_EQ(token, (world.rank + world.size - 1) % world.size);
}

TEST(MpiCommunicator, RefusesWhatIsNoGroupOfRanks) {
  EXPECT_EQ(MpiCommunicator(MPI_COMM_NULL).status().code(), absl::StatusCode::kInvalidArgument);
  const World world;
  if (world.size < 2) return;
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm inter = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, world.rank % 2, 0, &part);
  MPI_Intercomm_create(part, 0, MPI_COMM_WORLD, 1 - world.rank % 2, 0, &inter);
  EXPECT_EQ(MpiCommunicator(inter).status().code(), absl::StatusCode::kInvalidArgument);
  MPI_Comm_free(&inter);
  MPI_Comm_free(&part);
}

TEST(MpiSession, LeavesARunningMpiToItsOwner) {
  { ASSERT_TRUE(MpiSession::Start().ok()); }
  int finalized = 1;
  MPI_Finalized(&finalized);
  EXPECT_FALSE(finalized);
  EXPECT_THAT(MpiDescription(), HasSubstr("; MPI_THREAD_MULTIPLE"));
}

}  // namespace
}  // namespace zerohold
