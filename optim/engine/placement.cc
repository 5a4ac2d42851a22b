// Walks the model once for each kind of array, and sizes the slots.
#include "optim/engine/placement.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <numeric>

#include "offload/tiers/nvme_tier.h"
#include "optim/kernels/masters.h"
#include "optim/kernels/update.h"
#include "src/base/status_macros.h"

namespace zerohold::engine {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Bytes on this rank, of states by record, of the rest by space.
struct Sizes {
  Sizes(const EngineOptions& options, const layout::Layout& layout) {
    const auto spaces = layout.spaces();
    for (const layout::Record& record : layout.records()) {
      states.push_back(record.elems * StateBytes(options, spaces[record.space].dtype));
    }
    for (const layout::FlatSpace& space : spaces) {
      const layout::UnitPlace& unit = layout.units()[space.unit];
      const int64_t bytes = space.frozen ? 0 : space.held_elems * SizeOf(space.dtype);
      parameters.push_back(unit.parameters_framed ? bytes : 0);
      gradients.push_back(unit.gradients_framed ? bytes : 0);
    }
  }
  std::vector<int64_t> states;
  std::vector<int64_t> parameters;
  std::vector<int64_t> gradients;
};

int64_t Sum(const std::vector<int64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

// Which of these are beyond the budget, when those before them fill it; the first that does not fit
// ends it.
std::vector<bool> BeyondBudget(const std::vector<int64_t>& bytes, const Budget& budget) {
  std::vector<bool> beyond(bytes.size());
  int64_t left_bytes = budget.Of(Sum(bytes));
  for (size_t i = 0; i < bytes.size(); ++i) {
    beyond[i] = bytes[i] > left_bytes;
    left_bytes = beyond[i] ? 0 : left_bytes - bytes[i];
  }
  return beyond;
}

// As many slots as the bytes hold, within limits.
SlotPlan Slots(int64_t slot_bytes, int64_t bytes, int fewest, int most) {
  return {slot_bytes, static_cast<int>(std::clamp<int64_t>(bytes / slot_bytes, fewest, most))};
}

int64_t SectionBytes(int64_t payload_bytes) {
  const int64_t payloads[] = {payload_bytes};
  return payload_bytes == 0 ? 0 : tiers::NvmeTier::SlotBytes(payloads);
}

// Of a record of full length in the dtype that needs most, so that units that come later fit.
int64_t RecordSlotBytes(const EngineOptions& options, int64_t elems, bool gradients, bool copies) {
  int64_t most = 0;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const int64_t copy_bytes = elems * SizeOf(dtype);
    most = std::max(most, SectionBytes(elems * StateBytes(options, dtype)) +
                              SectionBytes(gradients ? copy_bytes : 0) +
                              SectionBytes(copies ? copy_bytes : 0));
  }
  return most;
}

}  // namespace

int64_t StateBytes(const EngineOptions& options, DType dtype) {
  const kernels::RuleFacts& rule = *kernels::FactsOf(options.rule);
  return kernels::MasterBytes({.copy = dtype, .master = options.master}) + (rule.moment1 ? 4 : 0) +
         (rule.moment2 ? 4 : 0);
}

OffloadOptions InBytes(const EngineOptions& options, const layout::Layout& layout) {
  const Sizes sizes(options, layout);
  OffloadOptions offload = options.offload;
  const auto fix = [](Budget& budget, const std::vector<int64_t>& bytes) {
    if (budget.fraction > 0.0 && budget != Budget::All()) budget = budget.Of(Sum(bytes));
  };
  for (TierBudgets* tier : {&offload.host, &offload.nvme}) {
    fix(tier->states, sizes.states);
    fix(tier->parameters, sizes.parameters);
    fix(tier->gradients, sizes.gradients);
  }
  return offload;
}

absl::Status CheckDiskBudgets(const EngineOptions& options, const layout::Layout& layout,
                              const Placement& placement) {
  const Sizes sizes(options, layout);
  const auto check = [](const char* kind, const std::vector<int64_t>& bytes,
                        const std::vector<bool>& on_disk, const Budget& budget) -> absl::Status {
    int64_t asked_bytes = 0;
    for (size_t i = 0; i < bytes.size(); ++i) asked_bytes += on_disk[i] ? bytes[i] : 0;
    const int64_t budget_bytes = budget.Of(Sum(bytes));
    if (asked_bytes <= budget_bytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        "offload.nvme.", kind, " is ", budget_bytes, " bytes, but offload.host.", kind, " leaves ",
        asked_bytes, " bytes of this rank's for it; give one of them more"));
  };
  const TierBudgets& nvme = options.offload.nvme;
  ZH_RETURN_IF_ERROR(check("states", sizes.states, placement.states, nvme.states));
  if (!placement.drop_copies) {
    ZH_RETURN_IF_ERROR(check("parameters", sizes.parameters, placement.copies, nvme.parameters));
  }
  return check("gradients", sizes.gradients, placement.gradients, nvme.gradients);
}

Placement Place(const EngineOptions& options, const layout::Layout& layout, bool one_reduction) {
  const OffloadOptions& offload = options.offload;
  const auto records = layout.records();
  const auto spaces = layout.spaces();
  Placement placement;
  placement.states.resize(records.size());
  placement.fetched.resize(records.size());
  placement.gradients.resize(spaces.size());
  placement.copies.resize(spaces.size());
  if (offload.nvme_paths.empty()) return placement;

  const bool gradients = one_reduction && offload.host.gradients != Budget::All();
  const bool copies = offload.host.parameters != Budget::All();
  const Sizes sizes(options, layout);
  placement.drop_copies = offload.drop_parameters;
  placement.states = BeyondBudget(sizes.states, offload.host.states);
  if (gradients) placement.gradients = BeyondBudget(sizes.gradients, offload.host.gradients);
  if (copies) placement.copies = BeyondBudget(sizes.parameters, offload.host.parameters);
  for (size_t i = 0; i < records.size(); ++i) {
    const int32_t space = records[i].space;
    placement.fetched[i] =
        placement.states[i] || placement.gradients[space] || placement.copies[space];
  }

  const int64_t elems = layout.config().record_elems;
  const int64_t slot_bytes = RecordSlotBytes(options, elems, gradients, copies);
  placement.record_slots = Slots(slot_bytes, 44 * kMiB, 3, 16);
  if (offload.window > 0) placement.record_slots.slots = offload.window;
  const int64_t copy_bytes = SectionBytes(elems * SizeOf(DType::kFloat32));
  if (gradients) placement.gradient_slots = Slots(copy_bytes, 8 * kMiB, 2, 8);
  if (copies && !placement.drop_copies) placement.copy_slots = Slots(copy_bytes, 8 * kMiB, 2, 8);
  return placement;
}

}  // namespace zerohold::engine
