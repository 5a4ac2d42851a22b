#include "bench/stress/states.h"

#include "optim/engine/model_memory.h"
#include "optim/kernels/masters.h"
#include "src/base/status_macros.h"
#include "src/layout/layout.h"

namespace zerohold::bench {

StatusOr<HeldStates> StatesOf(const StressModel& model, const EngineOptions& options, int rank,
                              int world) {
  layout::LayoutConfig config;
  config.communicators = {{world, rank}};
  config.shard_update = options.zero_stage > 0;
  config.bucket_elems = options.bucket_elems;
  config.record_elems = options.record_elems;
  config.gradient_frames = options.zero_stage >= 2;
  config.parameter_frames = options.zero_stage >= 3;
  ZH_ASSIGN_OR_RETURN(const layout::Layout layout,
                      layout::Layout::Create(config, model.parameter_specs, model.unit_specs));
  const engine::MemoryPlan plan = engine::MakeMemoryPlan(options, layout, model.unit_specs, {});

  const engine::Placement& placement = plan.placement;
  HeldStates held;
  held.elem_bytes = engine::StateBytes(options, model.dtype);
  held.copy_is_read =
      kernels::MasterBytes({.copy = model.dtype, .master = options.master}) < int64_t{4};
  held.slots = placement.record_slots.slots;
  held.slot_bytes = placement.record_slots.slot_bytes;
  for (size_t i = 0; i < layout.records().size(); ++i) {
    const layout::Record& record = layout.records()[i];
    const int64_t copy_bytes = record.elems * SizeOf(model.dtype);
    const bool copies = placement.copies[record.space] && !placement.drop_copies;
    held.elems += record.elems;
    held.records.push_back({.states = placement.states[i] ? record.elems * held.elem_bytes : 0,
                            .gradients = placement.gradients[record.space] ? copy_bytes : 0,
                            .copies = copies ? copy_bytes : 0});
  }
  return held;
}

}  // namespace zerohold::bench
