// Hashes and texts of what ranks must have in common.
#include "optim/engine/consistency.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>

#include "src/base/hash.h"
#include "src/base/status_macros.h"

namespace zerohold::engine {

Consistency::Consistency(const layout::Layout& layout, std::span<const UnitSpec> units)
    : layout_(layout), units_(units), written_(layout.spaces().size(), 0) {}

uint64_t Consistency::Hash(std::span<const GroupOptions> groups, int communicator) const {
  auto hash = static_cast<uint64_t>(micro_batches_);
  for (size_t i = 0; i < written_.size(); ++i) {
    if (layout_.spaces()[i].communicator != communicator) continue;
    hash = base::Hash(std::as_bytes(std::span(&written_[i], 1)), hash);
  }
  for (const GroupOptions& group : groups) {
    const double values[] = {group.learning_rate,
                             group.beta1,
                             group.beta2,
                             group.epsilon,
                             group.weight_decay,
                             group.momentum,
                             group.nesterov ? 1.0 : 0.0};
    hash = base::Hash(std::as_bytes(std::span(values)), hash);
  }
  return hash;
}

std::string Consistency::Describe(std::span<const GroupOptions> groups, int communicator) const {
  std::string text = absl::StrCat("micro-batches in this step: ", micro_batches_, "\n");
  for (size_t i = 0; i < groups.size(); ++i) {
    absl::StrAppend(&text, "group ", i, ": ", DescribeGroup(groups[i]), "\n");
  }
  for (size_t i = 0; i < written_.size(); ++i) {
    const layout::FlatSpace& space = layout_.spaces()[i];
    if (space.communicator != communicator) continue;
    absl::StrAppendFormat(&text, "values written to unit %s: hash %016x\n", units_[space.unit].name,
                          written_[i]);
  }
  return text;
}

void Consistency::Inherit(const Consistency& before) {
  std::ranges::copy(before.written_, written_.begin());
}

void Consistency::Clear() { std::fill(written_.begin(), written_.end(), 0); }

std::string DescribeGroup(const GroupOptions& group) {
  return absl::StrFormat(
      "learning_rate %.17g, beta1 %.17g, beta2 %.17g, epsilon %.17g, weight_decay %.17g, "
      "momentum %.17g, nesterov %d",
      group.learning_rate, group.beta1, group.beta2, group.epsilon, group.weight_decay,
      group.momentum, group.nesterov);
}

// Folders, budgets and windows are each rank's own, but not whether there are some.
std::string DescribeOffload(const OffloadOptions& offload) {
  const auto budget = [](int64_t bytes) {
    return bytes == OffloadOptions::kAllBytes ? "all" : "some";
  };
  return absl::StrCat("offload.nvme_paths: ", offload.nvme_paths.empty() ? "none" : "some",
                      "\noffload.host_parameters_bytes: ", budget(offload.host_parameters_bytes),
                      "\noffload.drop_parameters: ", offload.drop_parameters, "\n");
}

std::string DescribeOptions(const EngineOptions& options) {
  const ScheduleOptions& schedule = options.schedule;
  std::string text = absl::StrCat(
      "zero_stage: ", options.zero_stage, "\nrule: ", static_cast<int>(options.rule),
      "\nreduction: ", static_cast<int>(options.reduction),
      "\nbucket_elems: ", options.bucket_elems, "\nrecord_elems: ", options.record_elems,
      "\noverlap_next_forward: ", static_cast<int>(options.overlap_next_forward),
      "\ncheck_collective_order: ", static_cast<int>(options.check_collective_order));
  absl::StrAppendFormat(&text, "\nclip_grad_norm: %.17g\n", options.clip_grad_norm);
  absl::StrAppendFormat(
      &text, "schedule: kind %d, warmup_steps %d, total_steps %d, final_fraction %.17g, ",
      static_cast<int>(schedule.kind), schedule.warmup_steps, schedule.total_steps,
      schedule.final_fraction);
  absl::StrAppendFormat(&text, "base_batch_size %d, batch_size %d\n", schedule.base_batch_size,
                        schedule.batch_size);
  const LossScaleOptions& scale = options.loss_scale;
  absl::StrAppendFormat(
      &text,
      "loss_scale: enabled %d, dynamic %d, initial %.17g, growth %.17g, backoff %.17g, "
      "growth_interval %d, hysteresis %d, floor %.17g, cap %.17g, max_skips %d\n",
      scale.enabled, scale.dynamic, scale.initial, scale.growth, scale.backoff,
      scale.growth_interval, scale.hysteresis, scale.floor, scale.cap, scale.max_skips);
  absl::StrAppend(&text, DescribeOffload(options.offload));
  absl::StrAppend(&text, "master: ", static_cast<int>(options.master),
                  "\nmax_micro_batches: ", options.max_micro_batches,
                  "\nreproducible: ", static_cast<int>(options.reproducible),
                  "\nmax_live_parameters_bytes: ", options.max_live_parameters_bytes,
                  "\nmax_live_gradients_bytes: ", options.max_live_gradients_bytes,
                  "\npersistence_threshold_elems: ", options.persistence_threshold_elems, "\n");
  absl::StrAppend(&text, "groups: ", options.groups.size(), "\n");
  for (size_t i = 0; i < options.groups.size(); ++i) {
    absl::StrAppend(&text, "group ", i, ": ", DescribeGroup(options.groups[i]), "\n");
  }
  return text;
}

// Who finds a difference takes part in what is left: others wait there for it.
absl::Status AgreeOnTexts(std::span<const std::shared_ptr<comm::Communicator>> communicators,
                          std::string_view what, const std::function<std::string(int)>& text_of) {
  absl::Status first;
  for (int i = 0; i < static_cast<int>(communicators.size()); ++i) {
    const absl::Status same = comm::AgreeOnText(*communicators[i], what, text_of(i));
    if (!same.ok() && !absl::IsFailedPrecondition(same)) return same;
    first.Update(same);
  }
  return comm::Agree(*communicators[0], first);
}

}  // namespace zerohold::engine
