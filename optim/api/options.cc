// Checks of options: each message names the field, its value and the legal range.
#include "zerohold/options.h"

#include <absl/strings/str_cat.h>

#include <cmath>

#include "optim/kernels/update.h"
#include "src/base/status_macros.h"

namespace zerohold {
namespace {

template <typename Value>
Status Bad(const char* field, Value value, const char* legal) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, "; give ", legal));
}

bool AtLeastZero(double value) { return value >= 0.0 && std::isfinite(value); }
bool BelowOne(double value) { return value >= 0.0 && value < 1.0; }

}  // namespace

Status GroupOptions::Validate() const {
  if (!AtLeastZero(learning_rate)) return Bad("learning_rate", learning_rate, "0 or more, finite");
  if (!BelowOne(beta1)) return Bad("beta1", beta1, "at least 0 and less than 1");
  if (!BelowOne(beta2)) return Bad("beta2", beta2, "at least 0 and less than 1");
  if (!AtLeastZero(epsilon)) return Bad("epsilon", epsilon, "0 or more, finite");
  if (!AtLeastZero(weight_decay)) return Bad("weight_decay", weight_decay, "0 or more, finite");
  return absl::OkStatus();
}

Status EngineOptions::Validate() const {
  if (zero_stage == 2 || zero_stage == 3) {
    return absl::UnimplementedError(
        absl::StrCat("zero_stage is ", zero_stage,
                     ": ZeRO stages 2 and 3 are not in this version; give 0 or 1"));
  }
  if (zero_stage != 0 && zero_stage != 1) return Bad("zero_stage", zero_stage, "0 or 1");
  if (groups.empty()) return Bad("groups", "empty", "at least one group");
  for (size_t i = 0; i < groups.size(); ++i) {
    if (Status status = groups[i].Validate(); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("groups[", i, "].", status.message()));
    }
  }
  ZH_RETURN_IF_ERROR(schedule.Validate());
  if (!AtLeastZero(clip_grad_norm)) {
    return Bad("clip_grad_norm", clip_grad_norm, "0 (off) or more, finite");
  }
  constexpr int64_t kMaxElems = int64_t{1} << 40;
  if (bucket_elems < 1 || bucket_elems > kMaxElems)
    return Bad("bucket_elems", bucket_elems, "1 to 2^40");
  if (record_elems < 1 || record_elems > kMaxElems)
    return Bad("record_elems", record_elems, "1 to 2^40");
  if (update_threads < 0 || update_threads > 1024) {
    return Bad("update_threads", update_threads, "0 (the cores allowed) to 1024");
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
