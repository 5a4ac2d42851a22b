// Everything that Engine::Create can be told. Ranks must agree on every field that changes the
// result or the order of collectives; Create compares them and names the first difference.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "zerohold/export.h"
#include "zerohold/schedule.h"
#include "zerohold/status.h"

namespace zerohold {

// kAdamW decouples the decay: p <- p (1 - lr wd) before the step (1711.05101).
// kAdam adds it to the gradient: g <- g + wd p (1412.6980 with L2).
// Both then do p <- p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon).
enum class UpdateRule : uint8_t { kAdamW, kAdam };

// The instruction sets of the CPU loops: x86-64 baseline, AVX2 (v3), AVX-512 (v4). All give the
// same bits; kBest takes the widest that the machine has.
enum class InstructionSet : uint8_t { kBest, kBaseline, kV3, kV4 };

// What the gradient of a step is: the mean over ranks and micro-batches, or their sum.
enum class GradientReduction : uint8_t { kMean, kSum };

// Hyper-parameters of one group. A value replaces the default, zero too.
struct GroupOptions {
  double learning_rate = 1e-3;  // >= 0, finite
  double beta1 = 0.9;           // in [0, 1)
  double beta2 = 0.999;         // in [0, 1)
  double epsilon = 1e-8;        // >= 0, finite
  double weight_decay = 0.0;    // >= 0, finite

  ZH_EXPORT Status Validate() const;
};

struct EngineOptions {
  // 0 replicates the optimizer states; 1 shards them over the ranks: 1/N of the memory and of the
  // update on each, for the same bytes on the wire. Stages 2 and 3 are not in this version.
  int zero_stage = 1;
  UpdateRule rule = UpdateRule::kAdamW;
  // ParameterSpec::group is an index into it.
  std::vector<GroupOptions> groups = std::vector<GroupOptions>(1);
  ScheduleOptions schedule;  // the same for all groups; multiplies their learning rates
  GradientReduction reduction = GradientReduction::kMean;

  // Global 2-norm above which gradients are scaled down, by limit / (norm + 1e-6). 0 is off.
  double clip_grad_norm = 0.0;

  // Elements that one collective moves. Larger buckets: fewer messages, less overlap, and more
  // staging (two buckets a rank). Rounded up to a multiple of 256; the result never depends on it.
  int64_t bucket_elems = int64_t{1} << 20;
  // Elements of one optimizer record, the piece that an update and a transfer handle at a time.
  // Rounded up to a multiple of 256; the result never depends on it.
  int64_t record_elems = int64_t{256} << 10;

  // Threads of the update on this rank; 0 takes the cores that the affinity mask gives this
  // process, divided by the ranks that share them. OMP_NUM_THREADS is not read.
  int update_threads = 0;
  InstructionSet instruction_set = InstructionSet::kBest;

  // A wait in a collective that lasts longer ends with DeadlineExceeded naming the operation and
  // the ranks that have not come. Seconds, > 0.
  double communication_timeout_s = 600.0;
  // Compares every collective's name over the ranks before it runs: one small message more for
  // each. On in debug builds.
#ifdef NDEBUG
  bool check_collective_order = false;
#else
  bool check_collective_order = true;
#endif

  // A Chrome trace of this rank is written here at Close; "" for none. May differ over ranks.
  std::string trace_path;
  // Gets each thing that is said once (a fallback taken, a doubtful environment); one line, no
  // newline. Called on any thread. Empty: standard error. May differ over ranks.
  std::function<void(const std::string&)> notice;

  // InvalidArgument naming the field, its value and the legal range; Unimplemented for what this
  // version has not got. Create calls it.
  ZH_EXPORT Status Validate() const;
};

}  // namespace zerohold
