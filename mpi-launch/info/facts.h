// What this machine gives, each thing with a hint if it will hurt. Reads /proc, /sys and limits;
// knows neither MPI nor the library.
#pragma once

#include <string>
#include <vector>

namespace zerohold::info {

struct Fact {
  std::string name;
  std::string value;
  std::string hint;  // what will hurt, and what mends it; "" for nothing
};

Fact Processor();
// local_ranks: the ranks of this job on this machine.
Fact Cores(int local_ranks);
Fact NumaNodes();
Fact Memory();
Fact LockedMemory();
Fact SharedMemory();
Fact HugePages();
Fact IoUring();

// "1.5 GiB".
std::string Bytes(double bytes);

}  // namespace zerohold::info
