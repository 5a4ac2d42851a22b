// The ranks that work together, as the engine sees them. For MPI see mpi.h.
#pragma once

#include <memory>
#include <vector>

#include "zerohold/export.h"
#include "zerohold/status.h"

namespace zerohold {

namespace comm {
class Communicator;
}

// A handle on one group of ranks; copies share it. Used by one thread at a time, and by nobody else
// while an engine holds it.
class ZH_EXPORT Communicator {
 public:
  explicit Communicator(std::shared_ptr<comm::Communicator> impl);

  int rank() const;
  int size() const;
  int local_rank() const;  // among the ranks that share this node's memory
  int local_size() const;

  // Makes one verdict out of all ranks': OK when every rank brings OK, else the status of the
  // lowest rank that failed, with its rank in the text, on every rank. Collective, blocking.
  Status Agree(const Status& mine);

  const std::shared_ptr<comm::Communicator>& impl() const { return impl_; }

 private:
  std::shared_ptr<comm::Communicator> impl_;
};

// A world of one rank: no launcher, no MPI.
ZH_EXPORT Communicator SelfCommunicator();

// A world whose ranks are threads of this process: element r is for the thread that plays rank r.
// Requires: world >= 1.
ZH_EXPORT std::vector<Communicator> ThreadCommunicators(int world);

}  // namespace zerohold
