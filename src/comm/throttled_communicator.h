// A communicator as if over a slower network, for tests and benches: what each verb takes more it
// waits for, and burns no core.
#pragma once

#include <memory>

#include "src/comm/communicator.h"

namespace zerohold::comm {

// Of what one rank sends: bytes a second, 0 for no limit, one verb after the other, duplicates
// included; and the latency of each verb, which verbs at the same time share.
struct LinkSpec {
  double rate = 0.0;
  double latency_s = 0.0;
};

// Every verb gives what `under` gives.
std::shared_ptr<Communicator> CreateThrottledCommunicator(std::shared_ptr<Communicator> under,
                                                          const LinkSpec& link);

}  // namespace zerohold::comm
