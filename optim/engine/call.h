// A call of the trainer, and its answer.
#pragma once

#include <absl/status/status.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "src/memory/extents.h"
#include "zerohold/engine.h"

namespace zerohold::engine {

// What the caller's thread does with memory before its call returns.
struct Move {
  enum class Kind : uint8_t {
    kAttachParameters,  // of a unit, from this extent of the frames
    kDetachParameters,
    kAttachGradients,  // and zero them
    kDetachGradients,
    kZeroGradients  // where they stay
  };
  Kind kind;
  UnitId unit;
  memory::Extent extent{};
};

// What AddUnits is given.
struct Addition {
  std::vector<ParameterSpec> parameters;
  std::vector<UnitSpec> units;
  std::vector<GroupOptions> groups;
  std::optional<OffloadOptions> offload;  // where all records rest from now on
};

// Lives on the caller's stack until it is answered.
struct Call {
  enum class Kind : uint8_t {
    kBeginMicroBatch,
    kAcquire,
    kRelease,
    kGradReady,
    kGradAbsent,
    kSetGroup,
    kStep,
    kRead,
    kWrite,
    kAdopt,
    kExtend,
    kQuiesce
  };
  Kind kind;

  // Arguments, by kind.
  bool last = true;
  double weight = 1.0;
  UnitId unit = -1;
  AcquireMode mode = AcquireMode::kForward;
  int group = 0;
  const GroupOptions* group_options = nullptr;
  ParameterId parameter = -1;
  StateKind state = StateKind::kMaster;
  int64_t begin = 0;
  std::span<float> out{};
  std::span<const float> values{};
  const Addition* addition = nullptr;

  // What the caller's own check of the arguments says (kRead, kWrite: all ranks must hear of it),
  // then the answer.
  absl::Status status{};
  StepStats stats{};
  std::span<const Move> moves{};  // valid until the next call
  std::atomic<bool> answered = false;
};

}  // namespace zerohold::engine
