// Ranks as threads: plays a world in one process.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <initializer_list>
#include <string>
#include <thread>
#include <vector>

#include "zerohold/communicator.h"
#include "zerohold/options.h"

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

// What an engine test begins with: a rank that does not come is told in seconds.
inline EngineOptions OptionsOfStage(int zero_stage) {
  EngineOptions options;
  options.zero_stage = zero_stage;
  options.communication_timeout_s = 20.0;
  options.max_micro_batches = 4;  // stages 2 and 3 want to know
  return options;
}

// RunRanks for every ZeRO stage and each of the worlds.
inline void RunStages(std::initializer_list<int> worlds,
                      const std::function<void(EngineOptions, int rank, Communicator)>& body) {
  for (const int world : worlds) {
    for (const int stage : {0, 1, 2, 3}) {
      RunRanks(world, [&](int rank, const Communicator& communicator) {
        SCOPED_TRACE("world " + std::to_string(world) + ", stage " + std::to_string(stage) +
                     ", rank " + std::to_string(rank));
        body(OptionsOfStage(stage), rank, communicator);
      });
    }
  }
}

}  // namespace zerohold::testing
