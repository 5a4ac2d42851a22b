// Ranks as threads: plays a world in one process.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "zerohold/communicator.h"

namespace zerohold::testing {

// Runs body(rank, communicator) on `world` threads and waits for all.
inline void RunRanks(int world, const std::function<void(int, Communicator)>& body) {
  std::vector<Communicator> communicators = ThreadCommunicators(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back(
        [&body, rank, communicator = communicators[rank]] { body(rank, communicator); });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace zerohold::testing
