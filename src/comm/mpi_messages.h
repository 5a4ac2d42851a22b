// What the MPI transport's own messages look like. Ranks of one job run the same build.
#pragma once

#include <cstddef>
#include <cstdint>

#include "src/comm/label.h"

namespace zerohold::comm {

// Data up to this length travel with the greeting, which MPIs send at once.
inline constexpr int64_t kShortBytes = 2048;

// The messages from one rank to another in one exchange: their whole length, and a hash of each
// one's.
struct Sizes {
  void Add(int64_t message_bytes) {
    bytes += message_bytes;
    hash = (hash + static_cast<uint64_t>(message_bytes) + 1) * 0x9e3779b97f4a7c15u;
  }
  int64_t bytes = 0;
  uint64_t hash = 0;
};

struct Greeting {
  uint32_t tag;
  Sizes outgoing;      // for the rank that is greeted
  Sizes incoming;      // expected from it
  int64_t part_bytes;  // longest part that data are cut into
  char label[kLabelBytes];
  std::byte data[kShortBytes];  // the outgoing ones, one after the other, if they are short
};

struct FarewellMessage {
  int32_t origin;
  int32_t code;
  char text[504];  // cut to fit
};

}  // namespace zerohold::comm
