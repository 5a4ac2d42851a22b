// A world of one rank.
#pragma once

#include <memory>

#include "src/comm/communicator.h"

namespace zerohold::comm {

std::shared_ptr<Communicator> CreateSelfCommunicator();

}  // namespace zerohold::comm
