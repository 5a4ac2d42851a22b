// Walks the model once for each kind of array, and sizes the slots.
#include "optim/engine/placement.h"

#include <algorithm>

#include "offload/tiers/nvme_tier.h"
#include "optim/kernels/masters.h"
#include "optim/kernels/update.h"

namespace zerohold::engine {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Which of `count` things are beyond the budget, when those before them fill it; the first that
// does not fit ends it.
template <typename BytesOf>
std::vector<bool> BeyondBudget(size_t count, int64_t budget_bytes, BytesOf bytes_of) {
  std::vector<bool> beyond(count);
  for (size_t i = 0; i < count; ++i) {
    const int64_t bytes = bytes_of(i);
    beyond[i] = bytes > budget_bytes;
    budget_bytes = beyond[i] ? 0 : budget_bytes - bytes;
  }
  return beyond;
}

bool MayBeAway(int64_t budget_bytes) { return budget_bytes != OffloadOptions::kAllBytes; }

// As many slots as the bytes hold, within limits.
SlotPlan Slots(int64_t slot_bytes, int64_t bytes, int fewest) {
  return {slot_bytes, static_cast<int>(std::clamp<int64_t>(bytes / slot_bytes, fewest, 8))};
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

  const bool gradients = one_reduction && MayBeAway(offload.host_gradients_bytes);
  const bool copies = MayBeAway(offload.host_parameters_bytes);
  placement.drop_copies = offload.drop_parameters;
  placement.states = BeyondBudget(records.size(), offload.host_budget_bytes, [&](size_t i) {
    const DType dtype = spaces[records[i].space].dtype;
    return records[i].elems * StateBytes(options, dtype);
  });
  const auto held_bytes = [&](size_t i, bool framed) {
    const layout::FlatSpace& space = spaces[i];
    return framed && !space.frozen ? space.held_elems * SizeOf(space.dtype) : 0;
  };
  if (gradients) {
    placement.gradients = BeyondBudget(spaces.size(), offload.host_gradients_bytes, [&](size_t i) {
      return held_bytes(i, layout.units()[spaces[i].unit].gradients_framed);
    });
  }
  if (copies) {
    placement.copies = BeyondBudget(spaces.size(), offload.host_parameters_bytes, [&](size_t i) {
      return held_bytes(i, layout.units()[spaces[i].unit].parameters_framed);
    });
  }
  for (size_t i = 0; i < records.size(); ++i) {
    const int32_t space = records[i].space;
    placement.fetched[i] =
        placement.states[i] || placement.gradients[space] || placement.copies[space];
  }

  const int64_t elems = layout.config().record_elems;
  const int64_t slot_bytes = RecordSlotBytes(options, elems, gradients, copies);
  placement.record_slots = Slots(slot_bytes, 44 * kMiB, 3);
  if (offload.window > 0) placement.record_slots.slots = offload.window;
  const int64_t copy_bytes = SectionBytes(elems * SizeOf(DType::kFloat32));
  if (gradients) placement.gradient_slots = Slots(copy_bytes, 8 * kMiB, 2);
  if (copies && !placement.drop_copies) placement.copy_slots = Slots(copy_bytes, 8 * kMiB, 2);
  return placement;
}

}  // namespace zerohold::engine
