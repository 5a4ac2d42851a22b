// Draws programs and the ways to carry them out.
#include "tests/optim/fuzz/program.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <limits>

namespace zerohold::fuzz {
namespace {

constexpr int64_t kFrame = int64_t{2} << 20;

std::vector<int64_t> DrawShape(Random& random) {
  switch (random.Below(9)) {
    case 0:
      return {};
    case 1:
      return {0, 5};
    case 2:
      return {1 + random.Below(3)};
    case 3:
      return {257};
    case 4:
      return {64 * (1 + random.Below(20))};
    case 5:
      return {random.OneIn(6) ? 600000 + random.Below(50) : 4001};
    default:
      return {1 + random.Below(60), 1 + random.Below(60)};
  }
}

Model DrawModel(Random& random, const std::string& prefix, const Program& program, bool half) {
  const Model& before = program.model;
  Model model;
  const auto units = random.Below(random.OneIn(8) ? 20 : 5) + (prefix.empty() ? 1 : 0);
  const DType one = random.Of({DType::kFloat32, DType::kBFloat16, DType::kFloat16});
  const bool mixed = random.OneIn(3);
  const bool mean = program.options.reduction == GradientReduction::kMean;
  for (int64_t u = 0; u < units; ++u) {
    UnitSpec unit{absl::StrCat(prefix, "u", u), {}, {}};
    const auto count = random.OneIn(8) ? 0 : 1 + random.Below(4);
    for (int64_t p = 0; p < count; ++p) {
      ParameterSpec spec{absl::StrCat(prefix, "p", u, ".", p), DrawShape(random)};
      spec.dtype = mixed ? random.Of({DType::kFloat32, DType::kBFloat16, DType::kFloat16}) : one;
      if (!half && spec.dtype == DType::kFloat16) spec.dtype = DType::kBFloat16;
      spec.frozen = random.OneIn(7);
      spec.atomic = random.OneIn(7);
      spec.group = static_cast<int>(random.Below(2));
      if (random.OneIn(6)) spec.norm_weight = 0.5;
      spec.communicator = static_cast<int>(random.Below(1 + std::ssize(program.splits)));
      if (spec.communicator > 0 && mean && random.OneIn(2)) spec.mean_ranks = program.world;
      unit.parameters.push_back(spec.name);
      model.parameters.push_back(std::move(spec));
    }
    model.units.push_back(std::move(unit));
  }
  // Ties: any unit may use a parameter of any other.
  std::vector<std::pair<std::string, std::string>> all;  // unit, parameter
  for (const Model* from : {&before, static_cast<const Model*>(&model)}) {
    for (const UnitSpec& unit : from->units)
      for (const std::string& name : unit.parameters) all.emplace_back(unit.name, name);
  }
  for (UnitSpec& unit : model.units) {
    if (all.empty() || !random.OneIn(4)) continue;
    const auto& [owner, name] = all[random.Below(std::ssize(all))];
    if (owner != unit.name) unit.uses.push_back(name);
  }
  std::shuffle(model.parameters.begin(), model.parameters.end(), std::mt19937_64(random.Below(99)));
  return model;
}

void DrawRule(Random& random, EngineOptions& options) {
  options.rule = random.Of({UpdateRule::kAdamW, UpdateRule::kAdamW, UpdateRule::kAdam,
                            UpdateRule::kSgd, UpdateRule::kLion, UpdateRule::kAdagrad});
  options.groups.assign(2, {});
  options.groups[0].learning_rate = 0.01;
  options.groups[1].learning_rate = 0.03;
  options.groups[1].weight_decay = 0.1;
  if (options.rule == UpdateRule::kSgd) options.groups[1].momentum = 0.9;
  if (random.OneIn(2)) options.clip_grad_norm = 1.0;
  if (random.OneIn(3)) {
    const int64_t warmup = random.Below(3);
    options.schedule = {
        .kind = random.Of({ScheduleKind::kConstant, ScheduleKind::kLinear, ScheduleKind::kCosine}),
        .warmup_steps = warmup,
        .total_steps = warmup + 1 + random.Below(5),
        .final_fraction = 0.25};
  }
}

int64_t ElemsOf(const ParameterSpec& spec) {
  int64_t elems = 1;
  for (const int64_t dim : spec.shape) elems *= dim;
  return elems;
}

// Frames for the unit and whatever it touches, for each and in all; generously padded.
struct Room {
  int64_t largest = 0;
  int64_t all = 0;
  bool tied = false;
};
Room RoomOf(const Program& program) {
  Room room;
  std::vector<ParameterSpec> specs = program.model.parameters;
  specs.insert(specs.end(), program.later.parameters.begin(), program.later.parameters.end());
  std::vector<UnitSpec> units = program.model.units;
  units.insert(units.end(), program.later.units.begin(), program.later.units.end());
  const auto bytes_of = [&](const UnitSpec& unit) {
    int64_t bytes = 0;
    for (const std::string& name : unit.parameters) {
      for (const ParameterSpec& spec : specs) {
        // Twice where ranks differ.
        const int64_t most = ElemsOf(spec) * SizeOf(spec.dtype) * (spec.communicator > 0 ? 2 : 1);
        if (spec.name == name) bytes += most + 4096;
      }
    }
    return (bytes + kFrame - 1) / kFrame * kFrame;
  };
  for (const UnitSpec& unit : units) {
    int64_t bytes = bytes_of(unit);
    for (const std::string& used : unit.uses) {
      room.tied = true;
      for (const UnitSpec& owner : units) {
        if (std::ranges::count(owner.parameters, used) > 0) bytes += bytes_of(owner);
      }
    }
    room.largest = std::max(room.largest, bytes);
    room.all += bytes;
  }
  return room;
}

OffloadOptions DrawOffload(Random& random, const std::string& folder) {
  OffloadOptions offload;
  offload.nvme_paths = {folder};
  if (random.OneIn(3)) offload.nvme_paths.push_back(folder);
  offload.host.states =
      random.Of<Budget>({0, 0, 1000, 20000, Budget::Fraction(0.4), Budget::All()});
  offload.window = static_cast<int>(random.Below(9));
  offload.io_engine = random.Of({IoEngine::kBest, IoEngine::kThreads});
  offload.read_rate = random.Of({0.0, 0.0, 0.0, 1e8});
  offload.write_rate = random.Of({0.0, 0.0, 0.0, 1e8});
  offload.update_rate = random.Of({0.0, 0.0, 0.0, 1e8});
  if (random.OneIn(2)) {
    offload.faults = absl::StrCat("short=0.3,again=0.2,late=0.2,seed=", random.Below(1000));
  }
  return offload;
}

// Where disks are used: of gradients and parameters, at stages that have them in frames, and of
// gradients that are not summed.
void DrawBudgets(Random& random, const EngineOptions& options, OffloadOptions& offload) {
  if (offload.nvme_paths.empty()) return;
  const auto budget = [&] {
    return random.Of<Budget>({0, 3000, Budget::Fraction(0.5), Budget::All()});
  };
  const bool sums =
      options.max_micro_batches > 1 || options.reduction == GradientReduction::kWeightedMean;
  if (options.zero_stage >= 2 && !sums) offload.host.gradients = budget();
  if (options.zero_stage >= 3) offload.host.parameters = budget();
}

// Micro-batches that are summed; in one order at all stages, or in one for each two of them.
void DrawSums(Random& random, Program& program) {
  EngineOptions& options = program.options;
  options.max_micro_batches = 2 + random.Below(4);
  options.reproducible = random.OneIn(2);
  if (options.reproducible) return;
  if (random.OneIn(2)) {
    program.most_stage = 1;
    return;
  }
  program.least_stage = options.zero_stage = 2;
  options.max_live_gradients_bytes = RoomOf(program).all + kFrame;
}

void DrawSteps(Random& random, bool adds, bool many, Program& program) {
  EngineOptions& options = program.options;
  const bool scaled = random.OneIn(2);
  if (scaled) options.loss_scale = {.enabled = true, .initial = 1024, .growth_interval = 2};
  const bool storm = scaled && random.OneIn(4);
  if (storm) options.loss_scale.max_skips = 1 + random.Below(3);
  const auto steps = 2 + random.Below(4);
  const auto added = random.Below(steps);
  const bool shuffled = random.OneIn(4);
  for (int64_t i = 0; i < steps; ++i) {
    Step step{.seed = static_cast<uint64_t>(random.Below(1 << 30))};
    step.micro_batches = many ? static_cast<int>(1 + random.Below(options.max_micro_batches)) : 1;
    if (random.OneIn(20)) step.micro_batches = 0;
    step.flush = random.OneIn(4);
    step.evaluates = random.OneIn(3);
    step.interrupts = random.OneIn(4);
    step.nests = random.OneIn(4);
    step.holds = random.OneIn(5);
    step.adds = adds && i == added;
    step.adopts = random.OneIn(6);
    step.overflows = storm ? !random.OneIn(4) : random.OneIn(scaled ? 4 : 12);
    step.writes = random.OneIn(2) ? static_cast<int>(random.Below(4)) : 0;
    step.sparse = random.OneIn(3);
    step.apart = step.sparse && random.OneIn(2);
    step.shuffled = shuffled;
    program.steps.push_back(step);
  }
}

std::string Describe(const Budget& budget) {
  return absl::StrCat(budget.bytes, "+", budget.fraction);
}

std::string Describe(const OffloadOptions& o) {
  return absl::StrCat("disk ", o.nvme_paths.size(), " host ", Describe(o.host.states), "/",
                      Describe(o.host.parameters), "/", Describe(o.host.gradients), " window ",
                      o.window, " io ", static_cast<int>(o.io_engine), " rates ", o.read_rate, "/",
                      o.write_rate, "/", o.update_rate, " faults \"", o.faults, "\"");
}

}  // namespace

Program MakeProgram(uint64_t seed) {
  Random random(seed);
  Program program;
  program.world = static_cast<int>(1 + random.Below(5));
  EngineOptions& options = program.options;
  options.zero_stage = 0;
  DrawRule(random, options);
  options.reduction = random.Of({GradientReduction::kMean, GradientReduction::kMean,
                                 GradientReduction::kSum, GradientReduction::kWeightedMean});
  if (random.OneIn(4)) options.master = MasterForm::kRemainder;
  const bool half = options.master != MasterForm::kRemainder;
  if (program.world > 1 && random.OneIn(3)) {
    for (int64_t i = 1 + random.Below(2); i > 0; --i) {
      program.splits.push_back({.ranks = static_cast<int>(1 + random.Below(program.world)),
                                .neighbours = random.OneIn(2),
                                .uneven = random.OneIn(3)});
    }
  }
  program.model = DrawModel(random, "", program, half);
  const bool adds = random.OneIn(3);
  if (adds) program.later = DrawModel(random, "late.", program, half);
  options.communication_timeout_s = 10.0;
  options.notice = [](const std::string&) {};
  options.update_threads = 1;
  const bool many = random.OneIn(3);
  if (many) DrawSums(random, program);
  if (!many && random.OneIn(3)) options.max_micro_batches = 3;  // of which one is used
  DrawSteps(random, adds, many, program);
  program.abandons = random.OneIn(4);
  return program;
}

Way Vary(const Program& program, Random& random, const std::string& folder) {
  Way way = {program.options, {}, {}};
  EngineOptions& options = way.options;
  options.zero_stage = static_cast<int>(program.least_stage +
                                        random.Below(1 + program.most_stage - program.least_stage));
  options.bucket_elems = random.Of<int64_t>({1, 256, 700, 5000, 1 << 20});
  options.record_elems = random.Of<int64_t>({256, 1000, 4096, 1 << 18});
  options.update_threads = static_cast<int>(1 + random.Below(3));
  options.instruction_set = random.Of(
      {InstructionSet::kBest, InstructionSet::kBaseline, InstructionSet::kV3, InstructionSet::kV4});
  if (!options.Validate().ok()) options.instruction_set = InstructionSet::kBest;  // not had here
  options.check_collective_order = random.OneIn(2);
  options.overlap_next_forward = random.OneIn(2);
  options.persistence_threshold_elems = random.Of<int64_t>({0, 0, 100, 5000});
  if (std::ranges::any_of(program.splits, &Split::uneven)) {
    options.persistence_threshold_elems = 0;  // a unit stays on all ranks or on none
  }
  const Room room = RoomOf(program);
  const int64_t least = std::max(kFrame, room.largest);
  const int64_t spare = random.Below(4) * kFrame;
  const bool holds = std::ranges::any_of(program.steps, &Step::holds);
  // Room for a tied unit wherever those lie that it uses.
  const int64_t parameters = room.tied ? 3 * least : least;
  if (random.OneIn(2)) options.max_live_parameters_bytes = parameters + spare;
  if (holds) options.max_live_parameters_bytes = room.all + kFrame;
  if (random.OneIn(4)) options.device_budget = int64_t{1} << 40;  // frames for all units
  const bool wide = holds || program.steps[0].shuffled;
  if (wide) options.max_live_gradients_bytes = room.all + kFrame;
  if (!wide) options.max_live_gradients_bytes = 0;
  if (!wide && !room.tied && random.OneIn(2)) options.max_live_gradients_bytes = least + spare;
  if (random.OneIn(2)) options.offload = DrawOffload(random, folder);
  DrawBudgets(random, options, options.offload);
  way.uneven = random.OneIn(3);
  const bool moves = random.OneIn(3);
  for (size_t i = 0; i < program.steps.size(); ++i) {
    way.moves.emplace_back();
    if (!moves || !random.OneIn(2)) continue;
    way.moves.back() = random.OneIn(3) ? OffloadOptions() : DrawOffload(random, folder);
    DrawBudgets(random, options, *way.moves.back());
  }
  return way;
}

Way VaryWithFaults(const Program& program, Random& random, const std::string& folder) {
  Way way = Vary(program, random, folder);
  way.moves.clear();
  OffloadOptions& offload = way.options.offload;
  offload = DrawOffload(random, folder);
  DrawBudgets(random, way.options, offload);
  if (random.OneIn(2)) way.options.record_elems = 256;  // many transfers
  const std::string faults = absl::StrCat(
      random.Of({"eio", "enospc", "flip", "stale"}), "=", random.Of({"0.3", "0.05", "0.01"}),
      ",late=0.2,first=", random.Below(60), ",seed=", random.Below(1000));
  const auto one = random.OneIn(3) ? -1 : random.Below(program.world);
  for (int rank = 0; rank < program.world; ++rank) {
    way.faults.push_back(one < 0 || one == rank ? faults : "");
  }
  return way;
}

OffloadOptions OffloadOf(const Way& way, OffloadOptions offload, int rank) {
  if (!way.faults.empty()) offload.faults = way.faults[rank];
  if (!way.uneven || rank % 2 == 0 || offload.nvme_paths.empty()) return offload;
  offload.host.states = 5000;
  offload.window = 1;
  if (offload.host.parameters != Budget::All()) offload.host.parameters = 6000;
  if (offload.host.gradients != Budget::All())
    offload.host.gradients = std::numeric_limits<int64_t>::max();
  return offload;
}

std::string Describe(const Way& way) {
  const EngineOptions& o = way.options;
  std::string text = absl::StrCat(
      "stage ", o.zero_stage, ", bucket ", o.bucket_elems, ", record ", o.record_elems,
      ", threads ", o.update_threads, ", persistence ", o.persistence_threshold_elems, ", device ",
      Describe(o.device_budget), ", live ", o.max_live_parameters_bytes, "/",
      o.max_live_gradients_bytes, ", order ", static_cast<int>(o.check_collective_order),
      ", overlap ", static_cast<int>(o.overlap_next_forward), ", instructions ",
      static_cast<int>(o.instruction_set), way.uneven ? ", uneven" : "", "\nat first ",
      Describe(o.offload));
  for (size_t i = 0; i < way.moves.size(); ++i) {
    if (way.moves[i]) absl::StrAppend(&text, "\nbefore step ", i, " ", Describe(*way.moves[i]));
  }
  for (size_t i = 0; i < way.faults.size(); ++i) {
    absl::StrAppend(&text, "\nrank ", i, " faults \"", way.faults[i], "\"");
  }
  return text;
}

std::string Describe(const Program& program) {
  const EngineOptions& o = program.options;
  std::string text = absl::StrCat(
      "world ", program.world, ", rule ", static_cast<int>(o.rule), ", reduction ",
      static_cast<int>(o.reduction), ", master ", static_cast<int>(o.master), ", reproducible ",
      static_cast<int>(o.reproducible), ", max_micro_batches ", o.max_micro_batches, ", scaled ",
      static_cast<int>(o.loss_scale.enabled), ", max_skips ", o.loss_scale.max_skips, ", stages ",
      program.least_stage, " to ", program.most_stage, program.abandons ? ", abandons" : "", "\n");
  for (const Split& split : program.splits) {
    absl::StrAppend(&text, "  communicator of ", split.neighbours ? "neighbours " : "every ",
                    split.ranks, split.uneven ? " uneven" : "", "\n");
  }
  for (const Model* model : {&program.model, &program.later}) {
    for (const ParameterSpec& spec : model->parameters) {
      absl::StrAppend(&text, "  ", spec.name, " ", NameOf(spec.dtype), " x", ElemsOf(spec),
                      spec.frozen ? " frozen" : "", spec.atomic ? " atomic" : "", " communicator ",
                      spec.communicator, "\n");
    }
    for (const UnitSpec& unit : model->units) {
      absl::StrAppend(&text, "  unit ", unit.name, ":");
      for (const std::string& name : unit.parameters) absl::StrAppend(&text, " ", name);
      for (const std::string& name : unit.uses) absl::StrAppend(&text, " uses ", name);
      absl::StrAppend(&text, "\n");
    }
  }
  for (const Step& step : program.steps) {
    absl::StrAppend(&text, "  step: micro ", step.micro_batches, " flush ", step.flush, " eval ",
                    step.evaluates, " interrupts ", step.interrupts, " nests ", step.nests,
                    " holds ", step.holds, " adds ", step.adds, " adopts ", step.adopts,
                    " overflows ", step.overflows, " writes ", step.writes, " sparse ", step.sparse,
                    " apart ", step.apart, " shuffled ", step.shuffled, "\n");
  }
  return text;
}

std::vector<std::vector<Communicator>> MakeCommunicators(const Program& program) {
  std::vector<std::vector<Communicator>> of_ranks(program.world);
  const std::vector<Communicator> all = ThreadCommunicators(program.world);
  for (int rank = 0; rank < program.world; ++rank) of_ranks[rank].push_back(all[rank]);
  for (const Split& split : program.splits) {
    for (int color = 0; color < program.world; ++color) {
      std::vector<int> members;
      for (int rank = 0; rank < program.world; ++rank) {
        if (split.ColorOf(rank) == color) members.push_back(rank);
      }
      if (members.empty()) continue;
      const auto some = ThreadCommunicators(static_cast<int>(members.size()));
      for (size_t i = 0; i < members.size(); ++i) of_ranks[members[i]].push_back(some[i]);
    }
  }
  return of_ranks;
}

Model ModelOf(const Program& program, const Model& model, int rank) {
  Model mine = model;
  for (ParameterSpec& spec : mine.parameters) {
    if (spec.communicator == 0 || spec.shape.empty()) continue;
    const Split& split = program.splits[spec.communicator - 1];
    if (split.uneven) spec.shape[0] += spec.shape[0] * split.ColorOf(rank) / program.world;
  }
  return mine;
}

}  // namespace zerohold::fuzz
