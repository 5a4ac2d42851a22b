// COM-12: a caller that started MPI at the lowest thread level, gives a part of the job, and
// finalizes MPI itself while a handle of ours still lives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <optional>

#include "src/comm/communicator.h"
#include "zerohold/mpi.h"

namespace zerohold {
namespace {

std::optional<Communicator> outlives_mpi;

TEST(CommunicationCases, COM_12) {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const bool in_part = rank < 2;
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, in_part ? 0 : MPI_UNDEFINED, 0, &part);
  EXPECT_THAT(MpiDescription(), testing::HasSubstr("MPI_THREAD_SINGLE"));
  if (!in_part) return;  // the third rank makes no call of ours

  StatusOr<Communicator> communicator = MpiCommunicator(part);
  ASSERT_TRUE(communicator.ok()) << communicator.status();
  MPI_Comm_free(&part);  // ours is a duplicate
  EXPECT_EQ(communicator->rank(), rank);
  EXPECT_EQ(communicator->size(), 2);
  EXPECT_FALSE(communicator->impl()->any_thread());
  EXPECT_EQ(communicator->Agree(rank == 1 ? absl::DataLossError("torn") : absl::OkStatus()),
            absl::DataLossError("rank 1: torn"));
  outlives_mpi = *communicator;
}

}  // namespace
}  // namespace zerohold

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int level = -1;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &level);
  int failed = RUN_ALL_TESTS();
  MPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  zerohold::outlives_mpi.reset();
  // What is asked for too late is refused, not fatal.
  if (zerohold::MpiCommunicator(MPI_COMM_WORLD).status().code() !=
          absl::StatusCode::kFailedPrecondition ||
      zerohold::MpiSession::Start().status().code() != absl::StatusCode::kFailedPrecondition) {
    std::fprintf(stderr, "after MPI_Finalize: no refusal\n");
    return 1;
  }
  return failed;
}
