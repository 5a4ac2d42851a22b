// The MPI transport, inside the house; the public functions over it are in zerohold/mpi.h.
#pragma once

#include <absl/status/statusor.h>
#include <mpi.h>

#include <memory>
#include <string>

#include "src/comm/communicator.h"

namespace zerohold::comm {

// Duplicates `comm` and frees the duplicate at the end, unless MPI is finalised by then. Collective
// over `comm`, blocking. Errors: FailedPrecondition when MPI does not run; InvalidArgument for a
// null or an inter-communicator; Internal with MPI's own text.
absl::StatusOr<std::shared_ptr<Communicator>> CreateMpiCommunicator(MPI_Comm comm);

// The text of an MPI error code.
std::string MpiErrorText(int code);

}  // namespace zerohold::comm
