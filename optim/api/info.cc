// What this build has and what this machine takes.
#include "zerohold/info.h"

#include "optim/kernels/update.h"
#include "zerohold/options.h"

namespace zerohold {

BuildInfo GetBuildInfo() {
  BuildInfo info;
  info.version = ZH_VERSION;  // of CMakeLists.txt
  info.devices = {"cpu"};
  info.communicators = {"self", "threads", "mpi"};
  for (const InstructionSet set :
       {InstructionSet::kBaseline, InstructionSet::kV3, InstructionSet::kV4}) {
    if (kernels::Supports(set)) info.instruction_sets.push_back(kernels::NameOf(set));
  }
  info.best_instruction_set = kernels::NameOf(kernels::BestInstructionSet());
  return info;
}

}  // namespace zerohold
