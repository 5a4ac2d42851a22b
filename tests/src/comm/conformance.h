// What every Communicator must do. A transport brings a Backend and instantiates the suite with it:
//   INSTANTIATE_TEST_SUITE_P(Threads, CommunicatorConformance, testing::Values(...),
//   NameOfBackend);
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "src/comm/communicator.h"

namespace zerohold::comm {

struct Backend {
  std::string name;
  // Makes a fresh world, runs `body` once for each rank that this process plays, and returns when
  // all ranks of the world are through.
  std::function<void(const std::function<void(Communicator&)>& body)> run;
};

class CommunicatorConformance : public testing::TestWithParam<Backend> {
 protected:
  void Run(const std::function<void(Communicator&)>& body) const { GetParam().run(body); }
};

inline std::string NameOfBackend(const testing::TestParamInfo<Backend>& info) {
  return info.param.name;
}

}  // namespace zerohold::comm
