// Ranks as threads of one process: for tests, and for trainers of that form. Element r is rank r's.
#pragma once

#include <memory>
#include <vector>

#include "src/comm/communicator.h"

namespace zerohold::comm {

std::vector<std::shared_ptr<Communicator>> CreateThreadCommunicators(int world);

}  // namespace zerohold::comm
