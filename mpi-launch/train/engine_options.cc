// What the flags mean to the engine. Whatever is out of its range is left for the engine to refuse.
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "mpi-launch/train/options.h"
#include "mpi-launch/train/sizes.h"

namespace zerohold::train {
namespace {

// The enum's value that `word` stands for. Requires: `word` is among `words`.
template <typename Enum, typename Words>
Enum Meaning(const Words& words, const std::string& word) {
  return static_cast<Enum>(std::find(words.begin(), words.end(), word) - words.begin());
}

}  // namespace

ScheduleOptions Options::Schedule() const {
  ScheduleOptions schedule;
  schedule.kind = ScheduleKind::kCosine;
  schedule.total_steps = total_steps > 0 ? total_steps : steps;
  schedule.warmup_steps = warmup >= 0 ? warmup : std::min<int64_t>(100, schedule.total_steps / 10);
  schedule.final_fraction = 0.1;
  return schedule;
}

DType Options::WeightType() const { return Meaning<DType>(kDTypes, dtype); }

GroupOptions Options::Group(bool decays) const {
  GroupOptions group;
  group.learning_rate = learning_rate;
  group.beta1 = beta1;
  group.beta2 = beta2;
  group.epsilon = epsilon;
  group.weight_decay = decays ? weight_decay : 0;
  group.momentum = momentum;
  group.nesterov = nesterov;
  return group;
}

LossScaleOptions Options::LossScale() const {
  LossScaleOptions scale;
  scale.dynamic = loss_scale == "dynamic" || loss_scale == "auto";
  scale.enabled = loss_scale == "auto" ? WeightType() == DType::kFloat16 : loss_scale != "off";
  scale.growth_interval = loss_scale_interval;
  scale.initial = loss_scale_initial;
  if (scale.enabled && !scale.dynamic) scale.initial = std::strtod(loss_scale.c_str(), nullptr);
  return scale;
}

OffloadOptions Options::Offload() const {
  OffloadOptions disks;
  disks.nvme_paths = nvme_paths;
  disks.host.states = offload == "nvme" ? ParseBudget(host_budget).value() : Budget::All();
  if (params_offload == "nvme") disks.host.parameters = 0;
  if (gradients_offload == "nvme") disks.host.gradients = 0;
  disks.window = static_cast<int>(std::min<int64_t>(window, std::numeric_limits<int>::max()));
  disks.require_pinned = require_pinned;
  disks.io_engine = Meaning<IoEngine>(kIoEngines, io_engine);
  disks.faults = offload_faults;
  return disks;
}

EngineOptions Options::Engine(int rank) const {
  EngineOptions options;
  options.zero_stage = zero_stage;
  options.rule = Meaning<UpdateRule>(kRules, rule);
  options.groups = {Group(true), Group(false)};
  options.schedule = Schedule();
  options.master = Meaning<MasterForm>(kMasters, master);
  options.loss_scale = LossScale();
  options.max_micro_batches = accumulate;
  options.reproducible = reproducible;
  options.max_live_parameters_bytes = max_live_parameters_bytes;
  options.max_live_gradients_bytes = max_live_gradients_bytes;
  options.device_budget = ParseBudget(device_budget).value();
  options.persistence_threshold_elems = persistence_threshold_elems;
  options.overlap_next_forward = overlap_next_forward;
  options.clip_grad_norm = clip;
  options.bucket_elems = bucket_elems;
  options.update_threads = update_threads;
  options.instruction_set = Meaning<InstructionSet>(kInstructionSets, instruction_set);
  options.offload = Offload();
  options.communication_timeout_s = communication_timeout_s;
  options.trace_path = TracePath(rank);
  return options;
}

}  // namespace zerohold::train
