// What the engine counts and tells. All counts are of this rank unless a name says otherwise.
#pragma once

#include <array>
#include <cstdint>

namespace zerohold {

enum class SkipReason : uint8_t { kNone, kNonFiniteGradient };
enum class Traffic : uint8_t { kReduceScatter, kAllGather, kCount };
enum class Stall : uint8_t { kReduce, kAgreement, kUpdate, kGather, kCount };

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
  double loss_scale = 1.0;
  // Bytes that this rank sent to others in collectives, since the step before.
  std::array<int64_t, static_cast<int>(Traffic::kCount)> sent_bytes{};
  // Time that Step waited, by what it waited for.
  std::array<int64_t, static_cast<int>(Stall::kCount)> stall_ns{};
};

enum class Tier : uint8_t { kDevice, kHost, kNvme, kCount };
enum class MemoryKind : uint8_t {
  kParameters,  // the compute copy; in fp32 it is the master too
  kGradients,
  kMaster,
  kMoment1,
  kMoment2,
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
  // All tiers, model state alone: everything but staging.
  int64_t ModelBytes() const {
    int64_t sum = 0;
    for (const auto& tier : bytes)
      for (int kind = 0; kind < static_cast<int>(MemoryKind::kStaging); ++kind) sum += tier[kind];
    return sum;
  }
};

}  // namespace zerohold
