// The suite over the transports that need no launcher.
#include <thread>
#include <vector>

#include "src/comm/self_communicator.h"
#include "src/comm/thread_communicator.h"
#include "src/comm/throttled_communicator.h"
#include "tests/src/comm/conformance.h"

namespace zerohold::comm {
namespace {

Backend Self() {
  return {"self", [](const auto& body) { body(*CreateSelfCommunicator()); }};
}

Backend Threads(int world) {
  return {"threads_" + std::to_string(world), [world](const auto& body) {
            std::vector<std::shared_ptr<Communicator>> ranks = CreateThreadCommunicators(world);
            std::vector<std::jthread> threads;
            for (auto& rank : ranks) {
              // Each rank goes as soon as it is through, whatever the others still do.
              threads.emplace_back([&body, own = std::move(rank)] { body(*own); });
            }
          }};
}

// As fast as what is under it.
Backend Throttled(int world) {
  return {"throttled_" + std::to_string(world), [world](const auto& body) {
            std::vector<std::jthread> threads;
            for (auto& rank : CreateThreadCommunicators(world)) {
              threads.emplace_back(
                  [&body, own = CreateThrottledCommunicator(std::move(rank), {})] { body(*own); });
            }
          }};
}

INSTANTIATE_TEST_SUITE_P(Local, CommunicatorConformance,
                         testing::Values(Self(), Threads(1), Threads(2), Threads(3), Threads(4),
                                         Threads(7), Throttled(3)),
                         NameOfBackend);

}  // namespace
}  // namespace zerohold::comm
