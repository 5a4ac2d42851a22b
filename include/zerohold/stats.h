// What the engine counts and tells. All counts are of this rank unless a name says otherwise.
#pragma once

#include <array>
#include <cstdint>

namespace zerohold {

enum class SkipReason : uint8_t { kNone, kNonFiniteGradient };
enum class Traffic : uint8_t { kReduceScatter, kAllGather, kCount };
// kDisk: no record was being updated, the next one had not come or the last not gone.
enum class Stall : uint8_t { kReduce, kAgreement, kDisk, kUpdate, kGather, kCount };

constexpr const char* NameOf(SkipReason reason) {
  return reason == SkipReason::kNone ? "none" : "non-finite gradient";
}

// What one Step did. `applied`, `step`, `skip_reason`, `grad_norm`, `clip_factor` and
// `learning_rate` are the same on every rank.
struct StepStats {
  bool applied = false;
  SkipReason skip_reason = SkipReason::kNone;
  int64_t step = 0;            // applied steps so far, this one included if it was
  double grad_norm = 0.0;      // 2-norm of the reduced gradient before clipping
  double clip_factor = 1.0;    // what clipping multiplied the gradient by
  double learning_rate = 0.0;  // of group 0, with its schedule
  double loss_scale = 1.0;     // the one that this step's gradients were scaled by
  // Bytes that this rank sent to others in collectives, since the step before.
  std::array<int64_t, static_cast<int>(Traffic::kCount)> sent_bytes{};
  // Records from and to disk, with the gradients and parameters that rest there and with headers,
  // since the step before.
  int64_t disk_read_bytes = 0;
  int64_t disk_written_bytes = 0;
  // Time with at least one read, one write, under way.
  int64_t disk_read_busy_ns = 0;
  int64_t disk_write_busy_ns = 0;
  // Stage 3: acquires of units in frames since the step before, by whether their gather was done,
  // under way, or began with the acquire; and acquires, so far, that the learned route did not
  // expect.
  int64_t prefetch_hits = 0;
  int64_t prefetch_late = 0;
  int64_t prefetch_misses = 0;
  int64_t route_changes = 0;
  // Time that Step waited, by what it waited for.
  std::array<int64_t, static_cast<int>(Stall::kCount)> stall_ns{};
};

enum class Tier : uint8_t { kDevice, kHost, kNvme, kCount };
enum class MemoryKind : uint8_t {
  kParameters,  // the compute copy; in fp32 it is the master too
  kGradients,   // with the running sums of micro-batches
  kMaster,
  kMoment1,
  kMoment2,
  kFrames,   // room for units that come and go, of fixed size (stages 2 and 3)
  kStaging,  // buffers of fixed size that do not grow with the model
  kCount
};

// Bytes allocated on this rank, by where and for what; counted when they are allocated.
struct MemoryStats {
  std::array<std::array<int64_t, static_cast<int>(MemoryKind::kCount)>,
             static_cast<int>(Tier::kCount)>
      bytes{};

  int64_t Bytes(Tier tier, MemoryKind kind) const {
    return bytes[static_cast<int>(tier)][static_cast<int>(kind)];
  }
  // All tiers, model state alone: everything but frames and staging.
  int64_t ModelBytes() const {
    int64_t sum = 0;
    for (const auto& tier : bytes)
      for (int kind = 0; kind < static_cast<int>(MemoryKind::kFrames); ++kind) sum += tier[kind];
    return sum;
  }
};

}  // namespace zerohold
