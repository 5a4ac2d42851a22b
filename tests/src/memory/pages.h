// What the kernel has behind an address, asked without touching it.
#pragma once

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/base/align.h"

namespace zerohold::memory {

// Pages of [begin, begin + bytes) that have memory behind them; -1 when the range is not mapped.
inline int64_t PresentPages(void* begin, int64_t bytes) {
  std::vector<unsigned char> pages(base::CeilDiv(bytes, base::kPageBytes));
  if (mincore(begin, bytes, pages.data()) != 0) return -1;
  return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
}

// Whether a touch of any page of [begin, begin + bytes) would fault.
inline bool Faults(const char* begin, int64_t bytes) {
  int ends[2];
  if (pipe(ends) != 0) return false;
  int64_t read_pages = 0;
  char byte;
  for (int64_t i = 0; i < bytes; i += base::kPageBytes) {
    // EFAULT instead of a signal.
    if (write(ends[1], begin + i, 1) == 1 && read(ends[0], &byte, 1) == 1) ++read_pages;
  }
  close(ends[0]);
  close(ends[1]);
  return read_pages == 0;
}

// Page faults that this thread has taken without a signal.
inline int64_t FaultsTaken() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return usage.ru_minflt + usage.ru_majflt;
}

}  // namespace zerohold::memory
