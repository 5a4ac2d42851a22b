// What the kernel counts of this process.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

namespace zerohold::bench {

// The number behind `name` in a file of lines "name number"; 0 when there is none.
inline int64_t NumberIn(const char* path, std::string_view name) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name)) return std::strtoll(line.c_str() + name.size(), nullptr, 10);
  }
  return 0;
}

inline int64_t PeakResidentBytes() { return NumberIn("/proc/self/status", "VmHWM:") * 1024; }

}  // namespace zerohold::bench
