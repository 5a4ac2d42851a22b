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
  const engine::MemoryPlan plan = engine::MakeMemoryPlan(options, layout, model.unit_specs);

  HeldStates held;
  held.elem_bytes = kernels::MasterBytes({.copy = model.dtype, .master = options.master}) +
                    (plan.moment1 ? 4 : 0) + (plan.moment2 ? 4 : 0);
  held.slots = plan.placement.record_slots.slots;
  held.slot_bytes = plan.placement.record_slots.slot_bytes;
  for (const layout::Record& record : layout.records()) {
    held.elems += record.elems;
    held.record_bytes.push_back(record.elems * held.elem_bytes);
  }
  return held;
}

}  // namespace zerohold::bench
