// Checks of options: each message names the field, its value and the legal range.
#include "zerohold/options.h"

#include <absl/strings/str_cat.h>

#include <cfloat>
#include <cmath>
#include <string>

#include "offload/io/backends.h"
#include "optim/kernels/update.h"
#include "src/base/status_macros.h"

namespace zerohold {
namespace {

template <typename Value>
Status Bad(const char* field, Value value, const char* legal) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; give ", legal));
}

// The status of a part of the options, its fields named from the whole.
Status Under(const std::string& prefix, const Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(prefix, ".", status.message()));
}

bool AtLeastZero(double value) { return value >= 0.0 && std::isfinite(value); }
bool AtLeastZeroInFloat(double value) { return value >= 0.0 && value <= FLT_MAX; }
bool BelowOne(double value) { return value >= 0.0 && value < 1.0; }
bool NormalInFloat(double value) { return value >= FLT_MIN && value <= FLT_MAX; }

Status CheckBudget(const Budget& budget) {
  if (budget.bytes < 0) return Bad("bytes", budget.bytes, "0 or more");
  if (budget.fraction >= 0.0 && budget.fraction <= 1.0) return absl::OkStatus();
  return Bad("fraction", budget.fraction, "0 to 1");
}

Status CheckRule(UpdateRule rule) {
  if (kernels::FactsOf(rule) != nullptr) return absl::OkStatus();
  return Bad("rule", static_cast<int>(rule),
             "kAdamW (0), kAdam (1), kSgd (2), kLion (3) or kAdagrad (4)");
}

// What the rule does not read stays at its default: whoever sets it expects it to act.
Status CheckRead(const GroupOptions& group, UpdateRule rule) {
  const GroupOptions defaults;
  const struct {
    uint32_t setting;
    const char* field;
    double value;
    double unset;
  } settings[] = {
      {kernels::kBeta1, "beta1", group.beta1, defaults.beta1},
      {kernels::kBeta2, "beta2", group.beta2, defaults.beta2},
      {kernels::kEpsilon, "epsilon", group.epsilon, defaults.epsilon},
      {kernels::kWeightDecay, "weight_decay", group.weight_decay, defaults.weight_decay},
      {kernels::kMomentum, "momentum", group.momentum, defaults.momentum},
      {kernels::kNesterov, "nesterov", group.nesterov ? 1.0 : 0.0, 0.0},
  };
  const kernels::RuleFacts& facts = *kernels::FactsOf(rule);
  for (const auto& setting : settings) {
    if ((facts.reads & setting.setting) != 0 || setting.value == setting.unset) continue;
    std::string reads = "learning_rate";
    for (const auto& other : settings) {
      if ((facts.reads & other.setting) != 0) absl::StrAppend(&reads, ", ", other.field);
    }
    return absl::InvalidArgumentError(absl::StrCat(setting.field, " is ", setting.value, ", which ",
                                                   facts.name, " does not read (it reads ", reads,
                                                   "); leave it at ", setting.unset));
  }
  return absl::OkStatus();
}

Status CheckGroups(const EngineOptions& options) {
  ZH_RETURN_IF_ERROR(CheckRule(options.rule));
  if (options.groups.empty()) return Bad("groups", "empty", "at least one group");
  for (size_t i = 0; i < options.groups.size(); ++i) {
    ZH_RETURN_IF_ERROR(
        Under(absl::StrCat("groups[", i, "]"), options.groups[i].Validate(options.rule)));
  }
  return absl::OkStatus();
}

Status CheckMemory(const EngineOptions& options) {
  if (options.max_micro_batches < 1) {
    return Bad("max_micro_batches", options.max_micro_batches, "1 or more");
  }
  if (options.max_live_parameters_bytes < 0) {
    return Bad("max_live_parameters_bytes", options.max_live_parameters_bytes,
               "0 (room for the two largest units) or more");
  }
  if (options.max_live_gradients_bytes < 0) {
    return Bad("max_live_gradients_bytes", options.max_live_gradients_bytes,
               "0 (room for the two largest units) or more");
  }
  ZH_RETURN_IF_ERROR(Under("device_budget", CheckBudget(options.device_budget)));
  if (options.persistence_threshold_elems < 0) {
    return Bad("persistence_threshold_elems", options.persistence_threshold_elems,
               "0 (no unit) or more");
  }
  constexpr int64_t kMaxElems = int64_t{1} << 40;
  if (options.bucket_elems < 1 || options.bucket_elems > kMaxElems)
    return Bad("bucket_elems", options.bucket_elems, "1 to 2^40");
  if (options.record_elems < 1 || options.record_elems > kMaxElems)
    return Bad("record_elems", options.record_elems, "1 to 2^40");
  return absl::OkStatus();
}

// What may go to disk is what comes in frames.
Status CheckPlaces(const EngineOptions& options) {
  const OffloadOptions& offload = options.offload;
  const auto check = [&](const char* field, bool set, int stage) -> Status {
    if (!set) return absl::OkStatus();
    if (options.zero_stage < stage) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, " is set, but at zero_stage ", options.zero_stage,
                       " that memory stays; give zero_stage ", stage, " or more, or leave it"));
    }
    if (!offload.nvme_paths.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(field, " is set, but there are no nvme_paths for the rest; give some"));
  };
  const bool parameters = offload.host.parameters != Budget::All();
  const bool gradients = offload.host.gradients != Budget::All();
  ZH_RETURN_IF_ERROR(check("offload.host.parameters", parameters, 3));
  ZH_RETURN_IF_ERROR(check("offload.drop_parameters", offload.drop_parameters, 3));
  if (offload.drop_parameters && parameters && offload.host.parameters.fraction > 0.0) {
    return absl::InvalidArgumentError(
        "offload.host.parameters is a fraction, which may mean less when units come, but with "
        "drop_parameters it stays; give bytes");
  }
  if (offload.drop_parameters && !parameters) {
    return absl::InvalidArgumentError(
        "offload.drop_parameters throws away what is beyond offload.host.parameters, which "
        "is all that there is; give less, or leave it false");
  }
  ZH_RETURN_IF_ERROR(check("offload.host.gradients", gradients, 2));
  const bool sums =
      options.max_micro_batches > 1 || options.reduction == GradientReduction::kWeightedMean;
  if (!gradients || !sums) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "offload.host.gradients is set, but running sums stay in memory; give max_micro_batches 1 "
      "and no kWeightedMean, or leave it");
}

}  // namespace

Status GroupOptions::Validate(UpdateRule rule) const {
  constexpr const char* kFinite = "0 or more, finite in fp32";
  if (!AtLeastZeroInFloat(learning_rate)) return Bad("learning_rate", learning_rate, kFinite);
  if (!BelowOne(beta1)) return Bad("beta1", beta1, "at least 0 and less than 1");
  if (!BelowOne(beta2)) return Bad("beta2", beta2, "at least 0 and less than 1");
  // Zero in fp32 would make 0/0 out of what has no gradient yet.
  if (!NormalInFloat(epsilon)) return Bad("epsilon", epsilon, "2^-126 or more, finite in fp32");
  if (!AtLeastZeroInFloat(weight_decay)) return Bad("weight_decay", weight_decay, kFinite);
  if (!BelowOne(momentum)) return Bad("momentum", momentum, "at least 0 and less than 1");
  ZH_RETURN_IF_ERROR(CheckRule(rule));
  ZH_RETURN_IF_ERROR(CheckRead(*this, rule));
  if (nesterov && momentum == 0.0) {
    return Bad("nesterov", "true with momentum 0", "a momentum above 0, or nesterov false");
  }
  return absl::OkStatus();
}

Status ScheduleOptions::Validate() const {
  if (kind > ScheduleKind::kCosine) {
    return Bad("kind", static_cast<int>(kind), "kConstant (0), kLinear (1) or kCosine (2)");
  }
  if (warmup_steps < 0) return Bad("warmup_steps", warmup_steps, "0 or more");
  if (kind != ScheduleKind::kConstant && total_steps <= warmup_steps) {
    return Bad("total_steps", total_steps,
               absl::StrCat("more than warmup_steps, which is ", warmup_steps).c_str());
  }
  if (!(final_fraction >= 0.0 && final_fraction <= 1.0)) {
    return Bad("final_fraction", final_fraction, "a number from 0 to 1");
  }
  if (base_batch_size < 0) return Bad("base_batch_size", base_batch_size, "0 (no scaling) or more");
  if (batch_size < 0) return Bad("batch_size", batch_size, "0 (no scaling) or more");
  if ((base_batch_size == 0) != (batch_size == 0)) {
    return Bad(
        "batch_size", batch_size,
        absl::StrCat("it together with base_batch_size, which is ", base_batch_size).c_str());
  }
  return absl::OkStatus();
}

Status LossScaleOptions::Validate() const {
  constexpr const char* kNormal = "2^-126 or more, finite in fp32";
  if (!NormalInFloat(initial)) return Bad("initial", initial, kNormal);
  if (!NormalInFloat(floor)) return Bad("floor", floor, kNormal);
  if (!NormalInFloat(cap)) return Bad("cap", cap, kNormal);
  if (floor > cap) return Bad("floor", floor, "at most cap");
  if (dynamic && (initial < floor || initial > cap)) {
    return Bad("initial", initial, "at least floor and at most cap");
  }
  if (!(growth > 1.0 && std::isfinite(growth))) return Bad("growth", growth, "more than 1, finite");
  if (!(backoff > 0.0 && backoff < 1.0)) return Bad("backoff", backoff, "more than 0, less than 1");
  if (growth_interval < 1) return Bad("growth_interval", growth_interval, "1 or more");
  if (hysteresis < 1) return Bad("hysteresis", hysteresis, "1 or more");
  if (max_skips < 0) return Bad("max_skips", max_skips, "0 (no limit) or more");
  return absl::OkStatus();
}

Status OffloadOptions::Validate() const {
  for (const std::string& path : nvme_paths) {
    if (path.empty()) return Bad("nvme_paths", "an empty path", "folders on local disks");
  }
  const std::pair<const char*, const TierBudgets&> tiers[] = {{"host.", host}, {"nvme.", nvme}};
  for (const auto& [tier, budgets] : tiers) {
    ZH_RETURN_IF_ERROR(Under(absl::StrCat(tier, "states"), CheckBudget(budgets.states)));
    ZH_RETURN_IF_ERROR(Under(absl::StrCat(tier, "parameters"), CheckBudget(budgets.parameters)));
    ZH_RETURN_IF_ERROR(Under(absl::StrCat(tier, "gradients"), CheckBudget(budgets.gradients)));
  }
  if (window < 0 || window > 4096) return Bad("window", window, "0 (by itself) to 4096");
  if (io_engine > IoEngine::kThreads) {
    return Bad("io_engine", static_cast<int>(io_engine), "kBest (0), kUring (1) or kThreads (2)");
  }
  const std::pair<const char*, double> rates[] = {
      {"read_rate", read_rate}, {"write_rate", write_rate}, {"update_rate", update_rate}};
  for (const auto& [field, rate] : rates) {
    const bool valid = rate == 0.0 || (rate >= 1.0 && std::isfinite(rate));
    if (!valid) return Bad(field, rate, "0 (no limit), or 1 or more, finite");
  }
  if (!(transfer_latency_s >= 0.0 && transfer_latency_s <= 3600.0)) {
    return Bad("transfer_latency_s", transfer_latency_s, "0 to 3600");
  }
  return io::ParseFaultSpec(faults).status();
}

Status EngineOptions::Validate() const {
  if (zero_stage < 0 || zero_stage > 3) return Bad("zero_stage", zero_stage, "0, 1, 2 or 3");
  ZH_RETURN_IF_ERROR(CheckGroups(*this));
  ZH_RETURN_IF_ERROR(Under("schedule", schedule.Validate()));
  if (reduction > GradientReduction::kWeightedMean) {
    return Bad("reduction", static_cast<int>(reduction),
               "kMean (0), kSum (1) or kWeightedMean (2)");
  }
  if (master > MasterForm::kRemainder) {
    return Bad("master", static_cast<int>(master), "kFloat32 (0) or kRemainder (1)");
  }
  ZH_RETURN_IF_ERROR(Under("loss_scale", loss_scale.Validate()));
  ZH_RETURN_IF_ERROR(CheckMemory(*this));
  ZH_RETURN_IF_ERROR(Under("offload", offload.Validate()));
  ZH_RETURN_IF_ERROR(CheckPlaces(*this));
  if (!AtLeastZero(clip_grad_norm)) {
    return Bad("clip_grad_norm", clip_grad_norm, "0 (off) or more, finite");
  }
  if (update_threads < 0 || update_threads > 1024) {
    return Bad("update_threads", update_threads, "0 (the cores allowed) to 1024");
  }
  if (instruction_set > InstructionSet::kV4) {
    return Bad("instruction_set", static_cast<int>(instruction_set),
               "kBest (0), kBaseline (1), kV3 (2) or kV4 (3)");
  }
  if (!kernels::Supports(instruction_set)) {
    return Bad("instruction_set", kernels::NameOf(instruction_set),
               "one that this CPU has, or best");
  }
  if (!(communication_timeout_s > 0.0 && communication_timeout_s <= 1e9)) {
    return Bad("communication_timeout_s", communication_timeout_s,
               "more than 0 and at most 1e9 seconds");
  }
  return absl::OkStatus();
}

}  // namespace zerohold
