// What this build of the library has, and what of it this machine can take: for people and scripts.
#pragma once

#include <string>
#include <vector>

#include "zerohold/export.h"

namespace zerohold {

struct BuildInfo {
  std::string version;                        // of the library that runs, not of this header
  std::vector<std::string> devices;           // that it was built with
  std::vector<std::string> communicators;     // that it was built with
  std::vector<std::string> instruction_sets;  // that this machine can run, narrowest first
  std::string best_instruction_set;           // what InstructionSet::kBest takes here
};

// Not collective, not blocking; needs no MPI.
ZH_EXPORT BuildInfo GetBuildInfo();

}  // namespace zerohold
