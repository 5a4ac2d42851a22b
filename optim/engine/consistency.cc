// Hashes and texts of what ranks must have in common.
#include "optim/engine/consistency.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <utility>

#include "src/base/hash.h"
#include "src/base/status_macros.h"

namespace zerohold::engine {
namespace {

// One line for each field, so that a difference names it and no more.
class Lines {
 public:
  explicit Lines(std::string prefix = "") : prefix_(std::move(prefix)) {}
  void Add(const char* name, int64_t value) {
    absl::StrAppend(&text_, prefix_, name, ": ", value, "\n");
  }
  void AddReal(const char* name, double value) {  // as short as its bits allow
    char digits[32];
    const std::to_chars_result end = std::to_chars(digits, std::end(digits), value);
    absl::StrAppend(&text_, prefix_, name, ": ", absl::string_view(digits, end.ptr - digits), "\n");
  }
  const std::string& text() const { return text_; }

 private:
  const std::string prefix_;
  std::string text_;
};

std::string DescribeSchedule(const ScheduleOptions& schedule) {
  Lines lines("schedule.");
  lines.Add("kind", static_cast<int>(schedule.kind));
  lines.Add("warmup_steps", schedule.warmup_steps);
  lines.Add("total_steps", schedule.total_steps);
  lines.AddReal("final_fraction", schedule.final_fraction);
  lines.Add("base_batch_size", schedule.base_batch_size);
  lines.Add("batch_size", schedule.batch_size);
  return lines.text();
}

std::string DescribeLossScale(const LossScaleOptions& scale) {
  Lines lines("loss_scale.");
  lines.Add("enabled", scale.enabled);
  lines.Add("dynamic", scale.dynamic);
  lines.AddReal("initial", scale.initial);
  lines.AddReal("growth", scale.growth);
  lines.AddReal("backoff", scale.backoff);
  lines.Add("growth_interval", scale.growth_interval);
  lines.Add("hysteresis", scale.hysteresis);
  lines.AddReal("floor", scale.floor);
  lines.AddReal("cap", scale.cap);
  lines.Add("max_skips", scale.max_skips);
  return lines.text();
}

}  // namespace

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
    text += DescribeGroup(i, groups[i]);
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

std::string DescribeGroup(size_t index, const GroupOptions& group) {
  Lines lines(absl::StrCat("groups[", index, "]."));
  lines.AddReal("learning_rate", group.learning_rate);
  lines.AddReal("beta1", group.beta1);
  lines.AddReal("beta2", group.beta2);
  lines.AddReal("epsilon", group.epsilon);
  lines.AddReal("weight_decay", group.weight_decay);
  lines.AddReal("momentum", group.momentum);
  lines.Add("nesterov", group.nesterov);
  return lines.text();
}

// Folders, budgets and windows are each rank's own, but not whether there are some.
std::string DescribeOffload(const OffloadOptions& offload) {
  const auto budget = [](const Budget& budget) { return budget == Budget::All() ? "all" : "some"; };
  return absl::StrCat("offload.nvme_paths: ", offload.nvme_paths.empty() ? "none" : "some",
                      "\noffload.host.parameters: ", budget(offload.host.parameters),
                      "\noffload.drop_parameters: ", offload.drop_parameters, "\n");
}

std::string DescribeOptions(const EngineOptions& options) {
  Lines lines;
  lines.Add("zero_stage", options.zero_stage);
  lines.Add("rule", static_cast<int>(options.rule));
  lines.Add("reduction", static_cast<int>(options.reduction));
  lines.Add("bucket_elems", options.bucket_elems);
  lines.Add("record_elems", options.record_elems);
  lines.Add("overlap_next_forward", options.overlap_next_forward);
  lines.Add("check_collective_order", options.check_collective_order);
  lines.AddReal("clip_grad_norm", options.clip_grad_norm);
  lines.Add("master", static_cast<int>(options.master));
  lines.Add("max_micro_batches", options.max_micro_batches);
  lines.Add("reproducible", options.reproducible);
  lines.Add("max_live_parameters_bytes", options.max_live_parameters_bytes);
  lines.Add("max_live_gradients_bytes", options.max_live_gradients_bytes);
  lines.Add("device_budget.bytes", options.device_budget.bytes);
  lines.AddReal("device_budget.fraction", options.device_budget.fraction);
  lines.Add("persistence_threshold_elems", options.persistence_threshold_elems);
  lines.Add("groups", std::ssize(options.groups));
  std::string text = lines.text();
  for (size_t i = 0; i < options.groups.size(); ++i) text += DescribeGroup(i, options.groups[i]);
  return absl::StrCat(text, DescribeSchedule(options.schedule),
                      DescribeLossScale(options.loss_scale), DescribeOffload(options.offload));
}

// Of a difference in the first all ranks know. Who finds one in another takes part in what is left:
// others wait there for it.
absl::Status AgreeOnTexts(std::span<const std::shared_ptr<comm::Communicator>> communicators,
                          std::string_view what, const std::function<std::string(int)>& text_of) {
  absl::Status first;
  for (int i = 0; i < static_cast<int>(communicators.size()); ++i) {
    std::string whole(what);
    if (i > 0) absl::StrAppend(&whole, " of communicators[", i, "]");
    const absl::Status same = comm::AgreeOnText(*communicators[i], whole, text_of(i));
    const bool known_to_all = i == 0 || !absl::IsFailedPrecondition(same);
    if (!same.ok() && known_to_all) return same;
    first.Update(same);
  }
  return comm::Agree(*communicators[0], first);
}

}  // namespace zerohold::engine
