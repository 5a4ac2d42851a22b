// How fast a disk is, by writing and reading for a moment.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>

#include "offload/io/backend.h"
#include "offload/io/record_file.h"

namespace zerohold::io {

struct RateProbe {
  int64_t bytes = int64_t{16} << 20;  // each way, at most; not more than the file has
  double seconds = 0.2;               // both ways, at most; but one round of each
  double timeout_s = 600.0;           // of one transfer
};

// Bytes a second of what is written once and read once, as records are in a step. What the file
// held is lost. Blocking. Errors: those of a Mover.
absl::StatusOr<double> MeasureRate(std::unique_ptr<IoBackend> backend,
                                   std::shared_ptr<const RecordFile> file, const RateProbe& probe);

}  // namespace zerohold::io
