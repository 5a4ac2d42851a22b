// The handle on a group of ranks, and the groups that need no MPI.
#include "zerohold/communicator.h"

#include <utility>

#include "src/comm/communicator.h"
#include "src/comm/self_communicator.h"
#include "src/comm/thread_communicator.h"

namespace zerohold {

Communicator::Communicator(std::shared_ptr<comm::Communicator> impl) : impl_(std::move(impl)) {}

int Communicator::rank() const { return impl_->rank(); }
int Communicator::size() const { return impl_->size(); }
int Communicator::local_rank() const { return impl_->local_rank(); }
int Communicator::local_size() const { return impl_->local_size(); }

Status Communicator::Agree(const Status& mine) { return comm::Agree(*impl_, mine); }

Communicator SelfCommunicator() { return Communicator(comm::CreateSelfCommunicator()); }

std::vector<Communicator> ThreadCommunicators(int world) {
  std::vector<Communicator> ranks;
  for (auto& rank : comm::CreateThreadCommunicators(world)) ranks.emplace_back(std::move(rank));
  return ranks;
}

}  // namespace zerohold
