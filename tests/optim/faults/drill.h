// A small training on disks that fail, from the first values to the last read, with everything that
// its trainers see and are told.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/optim/faults/moments.h"
#include "zerohold/options.h"

namespace zerohold::faults {

// kSkip: a gradient is infinite; kBlame: the same, and one skip too many.
enum class StepKind : uint8_t { kPlain, kSkip, kBlame };

struct Training {
  std::string name;
  int world = 1;
  DType dtype = DType::kFloat32;
  EngineOptions options;
  std::vector<StepKind> steps = {StepKind::kPlain, StepKind::kSkip, StepKind::kPlain};
  bool rewrites = false;  // values, before the last step
};

// What came of it on one rank.
struct Outcome {
  Status failed;          // of the first call that failed otherwise than it must; it was the last
  std::string failed_in;  // which it was
  Status after;           // of a Step behind it
  Status closed;
  std::vector<uint64_t> seen;  // hashes of what the calls brought, in order
  size_t answered = 0;         // of them, up to the last Step or Read
};

struct Drill {
  std::vector<Outcome> outcomes;             // by rank
  std::vector<std::unique_ptr<Disk>> disks;  // the same
};
// `faults` by rank.
Drill RunDrill(const Training& training, const std::vector<io::FaultSpec>& faults);

// Every way of keeping records on disk, in small; their files lie in `folders`, two of them.
std::vector<Training> Trainings(const std::vector<std::string>& folders);

}  // namespace zerohold::faults
