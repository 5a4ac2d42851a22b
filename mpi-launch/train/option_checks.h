// What flags may say, each by itself and beside others.
#pragma once

#include "mpi-launch/train/options.h"
#include "zerohold/status.h"

namespace zerohold::train {

// InvalidArgument, one line naming the flag and the mend.
Status Check(const Options& options);

}  // namespace zerohold::train
