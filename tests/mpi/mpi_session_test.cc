// COM-10: without a launcher, the world is one rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/comm/communicator.h"
#include "zerohold/mpi.h"

namespace zerohold {
namespace {

TEST(CommunicationCases, COM_10_ASessionWithoutMpirun) {
  EXPECT_EQ(MpiCommunicator(MPI_COMM_WORLD).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(MpiDescription(), testing::EndsWith("not started"));
  {
    StatusOr<MpiSession> session = MpiSession::Start();
    ASSERT_TRUE(session.ok()) << session.status();
    MpiSession moved = *std::move(session);
    StatusOr<Communicator> communicator = MpiCommunicator(MPI_COMM_WORLD);
    ASSERT_TRUE(communicator.ok()) << communicator.status();
    EXPECT_EQ(communicator->size(), 1);
    EXPECT_TRUE(communicator->impl()->any_thread());
    EXPECT_EQ(communicator->Agree(absl::OkStatus()), absl::OkStatus());
    EXPECT_THAT(MpiDescription(), testing::EndsWith("MPI_THREAD_MULTIPLE"));
  }
  int finalized = 0;
  MPI_Finalized(&finalized);
  EXPECT_TRUE(finalized);
}

}  // namespace
}  // namespace zerohold
