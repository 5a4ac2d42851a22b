// Communicators over MPI: the one public header that includes mpi.h.
#pragma once

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <string>

#include "zerohold/communicator.h"
#include "zerohold/export.h"
#include "zerohold/status.h"

namespace zerohold {

// Starts MPI with MPI_THREAD_MULTIPLE unless it runs already, and finalizes it in the destructor if
// this call started it. Without mpirun the world has one rank. Hold it in main, before the engine.
class ZH_EXPORT MpiSession {
 public:
  static StatusOr<MpiSession> Start();
  MpiSession(MpiSession&& other) noexcept;
  MpiSession& operator=(MpiSession&&) = delete;
  ~MpiSession();

 private:
  explicit MpiSession(bool owns) : owns_(owns) {}
  bool owns_ = false;
};

// Duplicates `comm`, so the caller's own messages never meet ours; frees the duplicate with the
// last handle. If MPI gives less than MPI_THREAD_MULTIPLE, collectives run inside the engine's
// calls and do not overlap with compute. Collective over `comm`, blocking. Errors:
// FailedPrecondition when MPI is not initialised or is finalised already.
ZH_EXPORT StatusOr<Communicator> MpiCommunicator(MPI_Comm comm);

// What MPI this is and the thread level it gives, one line, for people.
ZH_EXPORT std::string MpiDescription();

}  // namespace zerohold
