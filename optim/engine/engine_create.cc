// Making an engine, in collective steps that each end with one verdict for all ranks.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstdio>

#include "offload/staging/numa.h"
#include "offload/staging/pin.h"
#include "optim/engine/engine_core.h"
#include "src/base/status_macros.h"
#include "src/base/threads.h"
#include "src/device/cpu/cpu_device.h"
#include "src/memory/segment.h"

namespace zerohold::engine {
namespace {

absl::Status CheckParameters(const EngineCore::Input& input) {
  for (const ParameterSpec& parameter : input.parameters) {
    const auto bad = [&](auto... text) {
      return absl::StrCat("parameter ", parameter.name, ": ", text...);
    };
    if (parameter.dtype == DType::kFloat16 && input.options.master == MasterForm::kRemainder) {
      return absl::InvalidArgumentError(bad(
          "the remainder form of a master goes with bf16, not with fp16; give master kFloat32"));
    }
    const auto groups = static_cast<int>(input.options.groups.size());
    if (parameter.group < 0 || parameter.group >= groups) {
      return absl::InvalidArgumentError(bad("group is ", parameter.group,
                                            ", but options.groups has ", groups, "; give 0 to ",
                                            groups - 1, ", or one group more"));
    }
    const bool whole =
        parameter.dtype != DType::kFloat32 && input.options.master == MasterForm::kFloat32;
    if (input.options.offload.drop_parameters && !parameter.frozen && !whole) {
      return absl::InvalidArgumentError(
          bad("offload.drop_parameters needs an fp32 master beside a 16-bit copy; leave it false"));
    }
    if (!(parameter.norm_weight > 0.0 && parameter.norm_weight <= 1.0)) {
      return absl::InvalidArgumentError(
          bad("norm_weight is ", parameter.norm_weight, "; give more than 0 and at most 1"));
    }
    if (parameter.mean_ranks != 0 && input.options.reduction != GradientReduction::kMean) {
      return absl::InvalidArgumentError(bad("mean_ranks is ", parameter.mean_ranks,
                                            ", which only reduction kMean reads; give 0"));
    }
  }
  return absl::OkStatus();
}

// Ranks of the first communicator share options; of each, its parameters.
absl::Status CompareOverRanks(const EngineCore::Input& input) {
  return AgreeOnTexts(input.communicators, "options, parameters and units", [&](int i) {
    std::string text = layout::Describe(input.parameters, input.units, i);
    if (i > 0) return text;
    return absl::StrCat(DescribeOptions(input.options),
                        "communicators (SelfCommunicator() for one without a part in it): ",
                        input.communicators.size(), "\n", text);
  });
}

absl::Status CheckCommunicators(const EngineCore::Input& input) {
  const int all = input.communicators[0]->size();
  for (size_t i = 1; i < input.communicators.size(); ++i) {
    if (input.communicators[i]->size() <= all) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("communicator ", i, " has ", input.communicators[i]->size(),
                     " ranks, the first one ", all, "; the first is of all ranks of the engine"));
  }
  return absl::OkStatus();
}

// Whether collectives may run beside the trainer's calls.
bool AnyThread(const EngineCore::Input& input) {
  return std::ranges::all_of(input.communicators,
                             [](const auto& communicator) { return communicator->any_thread(); });
}

layout::LayoutConfig MakeLayoutConfig(const EngineCore::Input& input) {
  layout::LayoutConfig config;
  config.communicators.clear();
  for (const auto& communicator : input.communicators) {
    config.communicators.push_back({communicator->size(), communicator->rank()});
  }
  config.shard_update = input.options.zero_stage > 0;
  config.bucket_elems = input.options.bucket_elems;
  config.record_elems = input.options.record_elems;
  config.gradient_frames = input.options.zero_stage >= 2;
  config.parameter_frames = input.options.zero_stage >= 3;
  config.persistence_threshold_elems = input.options.persistence_threshold_elems;
  return config;
}

// The cores of this process's affinity mask, shared evenly by the ranks of the node that have the
// same mask.
absl::StatusOr<int> UpdateThreads(comm::Communicator& communicator, int asked) {
  const uint64_t mine =
      device::AffinityFingerprint() ^ (memory::SharedMemoryMount() * 0x9e3779b97f4a7c15u);
  ZH_ASSIGN_OR_RETURN(const std::vector<uint64_t> masks,
                      comm::GatherAll(communicator, "core sharing", mine));
  if (asked > 0) return asked;
  const auto sharers = std::ranges::count(masks, mine);
  return std::max(1, device::AllowedCores() / static_cast<int>(sharers));
}

}  // namespace

class EngineCore::Hold {
 public:
  ~Hold() {
    for (const auto& communicator : held_) communicator->LetGo();
  }
  // False when another engine has it. One that is listed twice is held once.
  bool Add(const std::shared_ptr<comm::Communicator>& communicator) {
    if (std::ranges::count(held_, communicator) > 0) return true;
    if (!communicator->TryHold()) return false;
    held_.push_back(communicator);
    return true;
  }

 private:
  std::vector<std::shared_ptr<comm::Communicator>> held_;
};

// Without a collective: the other engine may be at work on it.
absl::Status EngineCore::TakeHold(Input& input) {
  auto hold = std::make_shared<Hold>();
  for (size_t i = 0; i < input.communicators.size(); ++i) {
    if (hold->Add(input.communicators[i])) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("communicators[", i,
                     "] is in use by another engine; Close that one, or make "
                     "another communicator over the same ranks"));
  }
  input.hold = std::move(hold);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<EngineCore>> EngineCore::Create(Input input) {
  ZH_RETURN_IF_ERROR(TakeHold(input));
  comm::Communicator& communicator = *input.communicators[0];
  if (!input.options.notice) {
    input.options.notice = [rank = communicator.rank()](const std::string& text) {
      std::fprintf(stderr, "zerohold: rank %d: %s\n", rank, text.c_str());
    };
  }
  // 1. This rank's own view of its input.
  absl::Status status = input.options.Validate();
  if (status.ok()) status = telemetry::Trace::CheckPath(input.options.trace_path);
  if (status.ok()) {
    for (const auto& each : input.communicators) {
      comm::CommunicatorSettings settings = each->settings();
      settings.timeout_s = input.options.communication_timeout_s;
      each->Configure(settings);
    }
  }
  absl::StatusOr<layout::Layout> layout(absl::UnknownError("not planned"));
  if (status.ok()) {
    layout = Plan(input, {});
    status = layout.status();
  }
  ZH_RETURN_IF_ERROR(comm::Agree(communicator, status));
  // 2. The same input everywhere.
  ZH_RETURN_IF_ERROR(CompareOverRanks(input));
  input.options.offload = InBytes(input.options, *layout);
  // 3. Memory and threads.
  std::unique_ptr<EngineCore> core(
      new EngineCore(std::move(input), std::move(layout).value(), nullptr));
  ZH_RETURN_IF_ERROR(core->Allocate(nullptr));
  if (!AnyThread(core->input_) && communicator.rank() == 0) {
    core->input_.options.notice(
        "MPI gives less than MPI_THREAD_MULTIPLE, so collectives run inside the engine's calls and "
        "do not overlap with compute; call MPI_Init_thread with MPI_THREAD_MULTIPLE");
  }
  core->TakeCharge();
  return core;
}

// Errors: InvalidArgument naming the parameter, unit or option.
absl::StatusOr<layout::Layout> EngineCore::Plan(const Input& input,
                                                std::vector<UnitId> generations) {
  ZH_RETURN_IF_ERROR(CheckCommunicators(input));
  ZH_RETURN_IF_ERROR(CheckParameters(input));
  layout::LayoutConfig config = MakeLayoutConfig(input);
  config.generations = std::move(generations);
  return layout::Layout::Create(config, input.parameters, input.units);
}

EngineCore::EngineCore(Input input, layout::Layout layout, const EngineCore* before)
    : input_(std::move(input)),
      layout_(std::move(layout)),
      communicator_(*input_.communicators[0]),
      gather_communicators_(before == nullptr ? input_.communicators
                                              : before->gather_communicators_),
      instruments_(before == nullptr ? std::make_shared<Instruments>(input_.options.trace_path,
                                                                     communicator_.rank())
                                     : before->instruments_),
      ledger_(instruments_->ledger),
      sent_bytes_(instruments_->sent_bytes),
      trace_(instruments_->trace),
      memory_plan_(MakeMemoryPlan(input_.options, layout_, input_.units,
                                  before == nullptr ? FrameSizes() : before->memory_plan_.frames)),
      plan_(BuildStepPlan(layout_, memory_plan_.sum_levels > 0, memory_plan_.placement)),
      reduction_order_(ReductionOrder(layout_)),
      reductions_of_unit_(input_.units.size(), 0),
      queue_(plan_.operations.size() + 16),
      window_(input_.units, FreshEachMicroBatch()),
      residency_(layout_, input_.units, memory_plan_.frames.parameters),
      gradient_frames_(layout_, memory_plan_.frames.gradients),
      coherence_(layout_),
      step_(plan_, static_cast<int>(input_.units.size()),
            {.window = memory_plan_.placement.record_slots.slots,
             .closing = UsesDisk() && !(input_.options.overlap_next_forward && AnyThread(input_))},
            *this),
      agreement_(layout_),
      consistency_(layout_, input_.units),
      loss_scaler_(input_.options.loss_scale),
      loss_scale_(loss_scaler_.scale()),
      space_steps_(layout_.spaces().size(), 0),
      parameters_attached_(input_.units.size(), 0),
      gradients_attached_(input_.units.size(), 0),
      gathers_in_flight_(input_.units.size(), 0),
      reductions_issued_(input_.units.size(), 0),
      reductions_in_flight_(input_.units.size(), 0),
      accumulated_(input_.units.size(), 0),
      weights_(input_.communicators.size()) {
  for (const Operation& operation : plan_.operations) {
    if (operation.verb == Verb::kReduceScatter) ++reductions_of_unit_[operation.unit];
    if (operation.verb == Verb::kFetch) between_updates_ = after_updates_ = Stall::kDisk;
    // Gathers stand last.
    const bool gather = operation.verb == Verb::kAllGather;
    if (gather && operation.operand == Operand::kParameter) after_updates_ = Stall::kGather;
  }
  for (auto* list : {&shards_, &gather_shards_}) list->reserve(communicator_.size());
  for (auto* list : {&pieces_, &gather_pieces_}) list->reserve(communicator_.size());
  for (auto* list : {&begins_, &ready_, &absent_}) list->reserve(input_.units.size());
  moves_.reserve(2 * input_.units.size());
  gathers_.reserve(input_.units.size());
  waiting_gathers_.reserve(input_.units.size());
  // As many as a step has in flight, and some for units that come and go.
  issues_.resize(plan_.operations.size() + 4 * input_.units.size() + 16);
  free_issues_.reserve(2 * issues_.size());
  for (Issue& issue : issues_) free_issues_.push_back(&issue);
  levels_.reserve(memory_plan_.sum_levels);
  for (size_t i = 0; i < weights_.size(); ++i) {
    comm::Communicator& communicator = *input_.communicators[i];
    weights_[i].of_ranks.resize(communicator.size());
    comm::CommunicatorSettings settings = communicator.settings();
    settings.check_order = input_.options.check_collective_order;
    settings.sent_bytes = &sent_bytes_;
    communicator.Configure(settings);
  }
}

// Gradients that come in frames, that are added to fp32 sums, or that are reduced in every
// micro-batch.
std::vector<bool> EngineCore::FreshEachMicroBatch() const {
  std::vector<bool> fresh;
  for (const layout::UnitPlace& unit : layout_.units()) {
    bool summed_apart = false;
    for (int i = unit.first_space; i < unit.last_space; ++i) {
      summed_apart |= memory_plan_.full_sums && layout_.spaces()[i].dtype != DType::kFloat32;
    }
    fresh.push_back(unit.gradients_framed || summed_apart || RoundEachMicroBatch());
  }
  return fresh;
}

absl::Status EngineCore::Allocate(const EngineCore* before) {
  ZH_RETURN_IF_ERROR(comm::Agree(communicator_, CheckBudgets()));
  ZH_ASSIGN_OR_RETURN(memory_,
                      ModelMemory::Create(communicator_, layout_, memory_plan_,
                                          before == nullptr ? nullptr : before->memory_.get(),
                                          {&ledger_, input_.options.notice}));
  ZH_RETURN_IF_ERROR(comm::Agree(communicator_, CreateRecords(before)));
  access_ = std::make_unique<StateAccess>(layout_, *memory_, *records_, input_.options.master,
                                          memory_plan_.placement);
  fault_map_ = std::make_unique<memory::FaultMap>(FaultEntries());
  const bool said = before != nullptr && !before->memory_->arenas().parameter_frames->moves();
  if (!memory_->arenas().parameter_frames->moves() && communicator_.rank() == 0 && !said) {
    input_.options.notice(
        "this kernel cannot move shared mappings (5.13 can), so every acquire maps its pages anew");
  }
  ZH_RETURN_IF_ERROR(comm::Agree(communicator_, AllocateScratch()));
  if (layout_.config().parameter_frames) ZH_RETURN_IF_ERROR(PrepareGathers());
  int threads = before == nullptr ? 0 : before->update_site_->threads();
  if (before == nullptr) {
    ZH_ASSIGN_OR_RETURN(threads, UpdateThreads(communicator_, input_.options.update_threads));
  }
  return comm::Agree(communicator_, StartThreads(threads));
}

// Gathers run in one order on all ranks that share them. So a unit is in frames on all of these
// ranks or on none; and where ranks differ in what their units need, they would differ in what they
// evict and prefetch, so that every acquire gathers.
absl::Status EngineCore::PrepareGathers() {
  const auto framed_with = [this](int communicator) {
    std::string text;
    for (size_t unit = 0; unit < input_.units.size(); ++unit) {
      const layout::UnitPlace& place = layout_.units()[unit];
      const auto spaces =
          layout_.spaces().subspan(place.first_space, place.last_space - place.first_space);
      const bool shared = std::ranges::any_of(spaces, [&](const layout::FlatSpace& space) {
        return space.communicator == communicator && space.elems > 0;
      });
      if (!shared) continue;
      absl::StrAppend(&text, "unit ", input_.units[unit].name,
                      place.parameters_framed ? " comes in frames\n" : " stays\n");
    }
    return text;
  };
  ZH_RETURN_IF_ERROR(AgreeOnTexts(input_.communicators,
                                  "what persistence_threshold_elems makes of units", framed_with));
  bool alike = true;
  for (size_t i = 0; i < input_.communicators.size(); ++i) {
    const bool shares = framed_with(static_cast<int>(i)).find("frames") != std::string::npos;
    const auto needs = static_cast<int64_t>(shares ? residency_.HashOfNeeds() >> 1 : 0);
    int64_t ends[] = {needs, -needs};
    ZH_RETURN_IF_ERROR(input_.communicators[i]->AllReduce({"needs of frames"}, {}, ends, {}));
    alike &= ends[0] == -ends[1];
  }
  const bool framed = std::ranges::any_of(layout_.units(), &layout::UnitPlace::parameters_framed);
  int64_t any[] = {framed ? 1 : 0, alike ? 0 : 1};
  ZH_RETURN_IF_ERROR(communicator_.AllReduce({"frames"}, {}, any, {}));
  residency_.set_on_demand(any[1] != 0);
  if (any[0] == 0 || gather_communicators_ != input_.communicators) return absl::OkStatus();
  for (auto& communicator : gather_communicators_) {
    ZH_ASSIGN_OR_RETURN(communicator, communicator->Duplicate());
  }
  return absl::OkStatus();
}

absl::Status EngineCore::CreateRecords(const EngineCore* before) {
  const bool move = before != nullptr && before->layout_.arenas().size() == layout_.arenas().size();
  const Placement& placement = memory_plan_.placement;
  const std::span<std::byte> staging = Staging(0, placement.staging_bytes());
  const bool known =
      before != nullptr && before->memory_->arenas().staging == memory_->arenas().staging;
  const absl::Status placed = known ? absl::OkStatus() : staging::PlaceNear(staging);
  const absl::Status pinned = staging::Pin(staging);
  if (!pinned.ok() && input_.options.offload.require_pinned) return pinned;
  for (const absl::Status& status : {placed, pinned}) {
    if (!known && !status.ok()) input_.options.notice(std::string(status.message()));
  }
  ZH_ASSIGN_OR_RETURN(
      records_,
      Records::Create({.layout = layout_,
                       .plan = memory_plan_,
                       .memory = *memory_,
                       .options = input_.options.offload,
                       .staging = staging,
                       .pinned = pinned.ok(),
                       .staging_owner = memory_->arenas().staging,
                       .before = before == nullptr ? nullptr : before->records_.get(),
                       .memory_before = before == nullptr ? nullptr : before->memory_.get(),
                       .move = move,
                       // Before the peers, who wait for this rank meanwhile, give up: they are to
                       // hear why.
                       .timeout_s = input_.options.communication_timeout_s / 2,
                       .backend = input_.backend,
                       .books = {&ledger_, input_.options.notice}}));
  const SlotPlan& gradients = placement.gradient_slots;
  const SlotPlan& copies = placement.copy_slots;
  const int64_t begin = placement.record_slots.bytes();
  if (gradients.slots > 0) {
    ZH_ASSIGN_OR_RETURN(gradient_spill_,
                        GradientSpill::Create(layout_, *records_, Staging(begin, gradients.bytes()),
                                              gradients, &ledger_));
  }
  device_ = device::CreateCpuDevice();
  if (copies.slots > 0) {
    const std::span<std::byte> its = Staging(begin + gradients.bytes(), copies.bytes());
    return base::StartThreads([&] {
      copy_reader_ = std::make_unique<CopyReader>(
          CopyReader::Input{layout_, placement, *records_, its, *device_});
    });
  }
  return absl::OkStatus();
}

// A part of what moves between tiers.
std::span<std::byte> EngineCore::Staging(int64_t begin, int64_t bytes) const {
  if (bytes == 0) return {};
  return {reinterpret_cast<std::byte*>(memory_->arenas().staging->base()) + begin,
          static_cast<size_t>(bytes)};
}

// What a touch of a unit that is away means, parameter by parameter.
std::vector<memory::FaultMap::Entry> EngineCore::FaultEntries() const {
  std::vector<memory::FaultMap::Entry> entries;
  for (size_t id = 0; id < input_.parameters.size(); ++id) {
    const layout::Layout::Place place = layout_.PlaceOf(static_cast<ParameterId>(id));
    const layout::FlatSpace& space = layout_.spaces()[place.space];
    const layout::UnitPlace& unit = layout_.units()[space.unit];
    const std::string& name = input_.units[space.unit].name;
    const int64_t elem_bytes = SizeOf(space.dtype);
    const auto add = [&](std::byte* base, const char* what, const char* why) {
      entries.push_back({.begin = reinterpret_cast<char*>(base + place.range.begin * elem_bytes),
                         .bytes = place.range.size() * elem_bytes,
                         .parameter = input_.parameters[id].name + what,
                         .unit = name,
                         .why = why});
    };
    if (place.range.size() == 0) continue;
    if (unit.parameters_framed) {
      add(memory_->ParameterAddress(place.space), "",
          "is not acquired; call Acquire for it before touching it");
    }
    if (unit.gradients_framed && !space.frozen) {
      add(memory_->GradientAddress(place.space), " (gradient)",
          "is not there; call Acquire(kBackward) for it before touching it, and GradReady, with "
          "which it goes, after the last touch");
    }
  }
  return entries;
}

absl::Status EngineCore::CheckBudgets() const {
  ZH_RETURN_IF_ERROR(CheckFrames(input_.options, layout_, input_.units, memory_plan_.frames));
  return CheckDiskBudgets(input_.options, layout_, memory_plan_.placement);
}

absl::Status EngineCore::AllocateScratch() {
  int ranks = 1;
  for (const auto& communicator : input_.communicators) {
    ranks = std::max(ranks, communicator->size());
  }
  ZH_ASSIGN_OR_RETURN(
      scratch_, memory::HostBuffer::Allocate(comm::Communicator::ScratchBytes(
                                                 layout_.MaxShardElems(), DType::kFloat32, ranks),
                                             MemoryKind::kStaging, &ledger_));
  return absl::OkStatus();
}

// They wait for the first call.
absl::Status EngineCore::StartThreads(int update_threads) {
  return base::StartThreads([&] {
    update_site_ = std::make_unique<UpdateSite>(UpdateSite::Model{layout_, *memory_, *records_},
                                                input_.options, update_threads);
    update_stream_ = device_->CreateStream("update");
    const bool any_thread = AnyThread(input_);
    executor_ = std::make_unique<comm::Executor>(any_thread);
    gather_executor_ = executor_.get();
    if (gather_communicators_ != input_.communicators && any_thread) {
      own_gather_executor_ = std::make_unique<comm::Executor>(true);
      gather_executor_ = own_gather_executor_.get();
    }
    thread_ = std::thread([this] { Loop(); });
  });
}

void EngineCore::TakeCharge() {
  in_charge_ = true;
  // All reductions run on one thread, one after the other.
  for (const auto& communicator : input_.communicators) {
    communicator->SetScratch(
        {static_cast<std::byte*>(scratch_.data()), static_cast<size_t>(scratch_.bytes())});
  }
  for (size_t unit = 0; unit < input_.units.size(); ++unit) Remember(static_cast<UnitId>(unit));
}

std::string EngineCore::DescribePlan() const {
  return absl::StrCat(
      "zero_stage ", input_.options.zero_stage, ", rank ", communicator_.rank(), " of ",
      communicator_.size(), ", ", layout_.bucket_count(), " buckets, ", layout_.records().size(),
      " records, update on ", update_site_->threads(), " thread(s), instruction set ",
      kernels::NameOf(update_site_->instruction_set()), "\n", ToString(plan_, input_.units));
}

}  // namespace zerohold::engine
