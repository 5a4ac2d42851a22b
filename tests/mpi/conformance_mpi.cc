// The suite over MPI: as many ranks as mpirun starts.
#include <mpi.h>

#include "src/comm/mpi_transport.h"
#include "tests/src/comm/conformance.h"

namespace zerohold::comm {
namespace {

Backend Mpi() {
  return {"mpi", [](const auto& body) {
            auto communicator = CreateMpiCommunicator(MPI_COMM_WORLD);
            ASSERT_TRUE(communicator.ok()) << communicator.status();
            body(**communicator);
            communicator->reset();
            MPI_Barrier(MPI_COMM_WORLD);
          }};
}

INSTANTIATE_TEST_SUITE_P(Mpi, CommunicatorConformance, testing::Values(Mpi()), NameOfBackend);

}  // namespace
}  // namespace zerohold::comm
