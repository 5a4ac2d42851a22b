// zerohold/mpi.h: the session, and the public handle on the MPI transport.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>

#include "src/base/status_macros.h"
#include "src/comm/mpi_transport.h"
#include "zerohold/mpi.h"

namespace zerohold {
namespace {

bool MpiRuns() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized && !finalized;
}

// "NAME=value" of the first variable in which a launcher gives another local rank than
// `local_rank`.
std::string ConflictingVariable(int local_rank) {
  for (const char* name :
       {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID", "LOCAL_RANK"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && value != std::to_string(local_rank)) {
      return std::string(name) + "=" + value;
    }
  }
  return "";
}

// Launchers number the ranks of the whole job, so a part of it cannot be compared. One line for the
// job, from the lowest rank that has something to say.
Status WarnOfConflict(MPI_Comm comm, comm::Communicator& ranks) {
  int likeness = MPI_UNEQUAL;
  MPI_Comm_compare(comm, MPI_COMM_WORLD, &likeness);
  if (likeness != MPI_IDENT && likeness != MPI_CONGRUENT) return absl::OkStatus();
  const std::string conflict = ConflictingVariable(ranks.local_rank());
  const int64_t mine = conflict.empty() ? 0 : ranks.size() - ranks.rank();
  int64_t lowest = mine;
  ZH_RETURN_IF_ERROR(ranks.AllReduce({.verb = "MpiCommunicator"}, {}, {&lowest, 1}, {}));
  if (mine != 0 && mine == lowest) {
    std::fprintf(
        stderr,
        "zerohold: rank %d: the environment has %s, but by shared memory this is local rank "
        "%d of %d; the variable is ignored\n",
        ranks.rank(), conflict.c_str(), ranks.local_rank(), ranks.local_size());
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<MpiSession> MpiSession::Start() {
  if (MpiRuns()) return MpiSession(false);
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) {
    return absl::FailedPreconditionError("MPI is finalised already and cannot start again");
  }
  int level = MPI_THREAD_SINGLE;
  const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  if (code != MPI_SUCCESS) return absl::InternalError(comm::MpiErrorText(code));
  return MpiSession(true);
}

MpiSession::MpiSession(MpiSession&& other) noexcept : owns_(std::exchange(other.owns_, false)) {}

MpiSession::~MpiSession() {
  if (owns_ && MpiRuns()) MPI_Finalize();
}

StatusOr<Communicator> MpiCommunicator(MPI_Comm comm) {
  ZH_ASSIGN_OR_RETURN(std::shared_ptr<comm::Communicator> ranks, comm::CreateMpiCommunicator(comm));
  ZH_RETURN_IF_ERROR(WarnOfConflict(comm, *ranks));
  return Communicator(std::move(ranks));
}

std::string MpiDescription() {
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(library, &length);
  std::string text(library, length);
  text.resize(std::min(text.find_first_of(",\n"), text.size()));
  int version = 0;
  int subversion = 0;
  MPI_Get_version(&version, &subversion);
  text += "; MPI " + std::to_string(version) + "." + std::to_string(subversion) + "; ";
  if (!MpiRuns()) return text + "not started";
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  return text + (level == MPI_THREAD_MULTIPLE     ? "MPI_THREAD_MULTIPLE"
                 : level == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
                 : level == MPI_THREAD_FUNNELED   ? "MPI_THREAD_FUNNELED"
                                                  : "MPI_THREAD_SINGLE");
}

}  // namespace zerohold
