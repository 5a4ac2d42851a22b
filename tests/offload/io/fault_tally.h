// How often each kind of fault was really done.
#pragma once

#include "offload/io/backends.h"
#include "src/telemetry/counters.h"

namespace zerohold::io {

using FaultTally = telemetry::Counters<Fault>;

// `tally` outlives the backend.
inline FaultSink CountIn(FaultTally& tally) {
  return [&tally](Fault fault, const Transfer&, int64_t) { tally.Add(fault, 1); };
}

}  // namespace zerohold::io
