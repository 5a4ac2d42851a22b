#include "src/comm/self_communicator.h"

#include "src/comm/point_to_point.h"

namespace zerohold::comm {
namespace {

class SelfCommunicator final : public PointToPointCommunicator {
 public:
  SelfCommunicator() : PointToPointCommunicator(0, 1) {}
  int local_rank() const override { return 0; }
  int local_size() const override { return 1; }
  bool any_thread() const override { return true; }

 protected:
  absl::Status Exchange(const Call&, std::span<const Outgoing>,
                        std::span<const Incoming>) override {
    return absl::OkStatus();  // nobody to exchange with
  }
  absl::StatusOr<std::shared_ptr<Communicator>> Twin() override {
    return std::make_shared<SelfCommunicator>();
  }
};

}  // namespace

std::shared_ptr<Communicator> CreateSelfCommunicator() {
  return std::make_shared<SelfCommunicator>();
}

}  // namespace zerohold::comm
