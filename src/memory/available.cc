#include "src/memory/available.h"

#include <fstream>
#include <limits>
#include <string>

namespace zerohold::memory {

int64_t AvailableMemoryBytes() {
  std::ifstream meminfo("/proc/meminfo");
  int64_t sum_kib = 0;
  std::string field;
  for (int64_t kib = 0; meminfo >> field >> kib;) {
    if (field == "MemAvailable:" || field == "SwapFree:") sum_kib += kib;
    meminfo.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return sum_kib * 1024;
}

}  // namespace zerohold::memory
