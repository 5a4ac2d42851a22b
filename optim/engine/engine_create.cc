// Making an engine, in collective steps that each end with one verdict for all ranks.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstdio>

#include "optim/engine/engine_core.h"
#include "src/base/status_macros.h"
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
      return absl::InvalidArgumentError(
          bad("group is ", parameter.group, ", but options.groups has ", groups));
    }
    if (!(parameter.norm_weight > 0.0 && parameter.norm_weight <= 1.0)) {
      return absl::InvalidArgumentError(
          bad("norm_weight is ", parameter.norm_weight, "; give more than 0 and at most 1"));
    }
    if (parameter.communicator != 0) {
      return absl::UnimplementedError(
          bad("communicator ", parameter.communicator,
              ": several communicators are not in this version; give 0"));
    }
  }
  return absl::OkStatus();
}

std::string Describe(const EngineCore::Input& input) {
  return DescribeOptions(input.options) + layout::Describe(input.parameters, input.units);
}

// The cores of this process's affinity mask, shared evenly by the ranks of the node that have the
// same mask.
absl::StatusOr<int> UpdateThreads(comm::Communicator& communicator, int asked) {
  std::vector<uint64_t> masks(communicator.size());
  const uint64_t mine[] = {device::AffinityFingerprint(), memory::SharedMemoryMount()};
  masks[communicator.rank()] = mine[0] ^ (mine[1] * 0x9e3779b97f4a7c15u);
  std::vector<comm::Piece> pieces;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    pieces.push_back({rank, rank * int64_t{sizeof(uint64_t)}, sizeof(uint64_t)});
  }
  ZH_RETURN_IF_ERROR(communicator.AllGather({"core sharing"}, masks.data(), pieces));
  if (asked > 0) return asked;
  const auto sharers = std::count(masks.begin(), masks.end(), masks[communicator.rank()]);
  return std::max(1, device::AllowedCores() / static_cast<int>(sharers));
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineCore>> EngineCore::Create(Input input) {
  comm::Communicator& communicator = *input.communicator;
  if (!input.options.notice) {
    input.options.notice = [rank = communicator.rank()](const std::string& text) {
      std::fprintf(stderr, "zerohold: rank %d: %s\n", rank, text.c_str());
    };
  }
  // 1. This rank's own view of its input.
  absl::Status status = input.options.Validate();
  if (status.ok()) {
    comm::CommunicatorSettings settings = communicator.settings();
    settings.timeout_s = input.options.communication_timeout_s;
    communicator.Configure(settings);
  }
  absl::StatusOr<layout::Layout> layout(absl::UnknownError("not planned"));
  if (status.ok()) {
    layout = Plan(input, {});
    status = layout.status();
  }
  ZH_RETURN_IF_ERROR(comm::Agree(communicator, status));
  // 2. The same input everywhere.
  ZH_RETURN_IF_ERROR(
      comm::AgreeOnText(communicator, "options, parameters and units", Describe(input)));
  // 3. Memory and threads.
  std::unique_ptr<EngineCore> core(
      new EngineCore(std::move(input), std::move(layout).value(), nullptr));
  ZH_RETURN_IF_ERROR(core->Allocate(nullptr));
  if (!communicator.any_thread() && communicator.rank() == 0) {
    core->input_.options.notice(
        "MPI gives less than MPI_THREAD_MULTIPLE, so collectives run inside the engine's calls and "
        "do not"
        " overlap with compute; call MPI_Init_thread with MPI_THREAD_MULTIPLE");
  }
  core->Start();
  return core;
}

// Errors: InvalidArgument naming the parameter, unit or option.
absl::StatusOr<layout::Layout> EngineCore::Plan(const Input& input,
                                                std::vector<UnitId> generations) {
  ZH_RETURN_IF_ERROR(CheckParameters(input));
  layout::LayoutConfig config;
  config.world = input.communicator->size();
  config.rank = input.communicator->rank();
  config.update_world = input.options.zero_stage == 0 ? 1 : config.world;
  config.bucket_elems = input.options.bucket_elems;
  config.record_elems = input.options.record_elems;
  config.gradient_frames = input.options.zero_stage >= 2;
  config.parameter_frames = input.options.zero_stage >= 3;
  config.persistence_threshold_elems = input.options.persistence_threshold_elems;
  config.generations = std::move(generations);
  return layout::Layout::Create(config, input.parameters, input.units);
}

EngineCore::EngineCore(Input input, layout::Layout layout, const EngineCore* before)
    : input_(std::move(input)),
      layout_(std::move(layout)),
      communicator_(*input_.communicator),
      gather_communicator_(before == nullptr ? input_.communicator : before->gather_communicator_),
      instruments_(before == nullptr ? std::make_shared<Instruments>(input_.options.trace_path,
                                                                     communicator_.rank())
                                     : before->instruments_),
      ledger_(instruments_->ledger),
      sent_bytes_(instruments_->sent_bytes),
      trace_(instruments_->trace),
      memory_plan_(MakeMemoryPlan(input_.options, layout_)),
      plan_(BuildStepPlan(layout_,
                          {.finish_sums = memory_plan_.sum_levels > 0,
                           .gather_gradients = communicator_.size() > layout_.config().update_world,
                           .gather_parameters = layout_.config().update_world > 1})),
      reductions_of_unit_(input_.units.size(), 0),
      queue_(plan_.operations.size() + 16),
      window_(input_.units, FreshEachMicroBatch()),
      residency_(layout_, input_.units, memory_plan_.parameter_frame_bytes),
      gradient_frames_(layout_, memory_plan_.gradient_frame_bytes),
      coherence_(layout_),
      step_(plan_, static_cast<int>(input_.units.size()), *this),
      agreement_(static_cast<int>(input_.units.size())),
      consistency_(input_.units),
      loss_scaler_(input_.options.loss_scale),
      loss_scale_(loss_scaler_.scale()),
      unit_steps_(input_.units.size(), 0),
      parameters_attached_(input_.units.size(), 0),
      gradients_attached_(input_.units.size(), 0),
      gathers_in_flight_(input_.units.size(), 0),
      reductions_issued_(input_.units.size(), 0),
      reductions_in_flight_(input_.units.size(), 0),
      accumulated_(input_.units.size(), 0),
      weights_(communicator_.size(), 0.0f),
      in_charge_(before == nullptr) {
  for (const Operation& operation : plan_.operations) {
    if (operation.verb == Verb::kReduceScatter) ++reductions_of_unit_[operation.unit];
  }
  for (auto* list : {&shards_, &gather_shards_}) list->reserve(communicator_.size());
  for (auto* list : {&pieces_, &gather_pieces_}) list->reserve(communicator_.size());
  for (auto* list : {&begins_, &ready_}) list->reserve(input_.units.size());
  moves_.reserve(2 * input_.units.size());
  gathers_.reserve(input_.units.size());
  // As many as a step has in flight, and some for units that come and go.
  issues_.resize(plan_.operations.size() + 4 * input_.units.size() + 16);
  free_issues_.reserve(2 * issues_.size());
  for (Issue& issue : issues_) free_issues_.push_back(&issue);
  levels_.reserve(memory_plan_.sum_levels);
  comm::CommunicatorSettings settings = communicator_.settings();
  settings.check_order = input_.options.check_collective_order;
  settings.sent_bytes = &sent_bytes_;
  communicator_.Configure(settings);
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
  ZH_RETURN_IF_ERROR(comm::Agree(communicator_, CheckFrames()));
  ZH_ASSIGN_OR_RETURN(memory_,
                      ModelMemory::Create(communicator_, layout_, memory_plan_,
                                          before == nullptr ? nullptr : before->memory_.get(),
                                          {&ledger_, input_.options.notice}));
  access_ = std::make_unique<StateAccess>(layout_, *memory_, input_.options.master);
  fault_map_ = std::make_unique<memory::FaultMap>(FaultEntries());
  const bool said = before != nullptr && !before->memory_->arenas().parameter_frames->moves();
  if (!memory_->arenas().parameter_frames->moves() && communicator_.rank() == 0 && !said) {
    input_.options.notice(
        "this kernel cannot move shared mappings (5.13 can), so every acquire maps its pages anew");
  }
  ZH_RETURN_IF_ERROR(comm::Agree(communicator_, AllocateScratch()));
  if (layout_.max_framed_parameter_bytes() > 0 && gather_communicator_ == input_.communicator) {
    ZH_ASSIGN_OR_RETURN(gather_communicator_, communicator_.Duplicate());
  }
  int threads = before == nullptr ? 0 : before->update_site_->threads();
  if (before == nullptr) {
    ZH_ASSIGN_OR_RETURN(threads, UpdateThreads(communicator_, input_.options.update_threads));
  }
  update_site_ = std::make_unique<UpdateSite>(layout_, *memory_, input_.options, threads);
  return absl::OkStatus();
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
    const auto add = [&](std::byte* base, const char* what, const char* call) {
      entries.push_back({.begin = reinterpret_cast<char*>(base + place.range.begin * elem_bytes),
                         .bytes = place.range.size() * elem_bytes,
                         .parameter = input_.parameters[id].name + what,
                         .unit = name,
                         .mend = absl::StrCat("call ", call, " for it before touching it")});
    };
    if (place.range.size() == 0) continue;
    if (unit.parameters_framed) add(memory_->ParameterAddress(place.space), "", "Acquire");
    if (unit.gradients_framed && !space.frozen) {
      add(memory_->GradientAddress(place.space), " (gradient)", "Acquire(kBackward)");
    }
  }
  return entries;
}

absl::Status EngineCore::CheckFrames() const {
  for (size_t i = 0; i < input_.units.size(); ++i) {
    const layout::UnitPlace& unit = layout_.units()[i];
    const auto too_small = [&](const char* option, int64_t needed, int64_t given) {
      return absl::InvalidArgumentError(
          absl::StrCat(option, " is ", given, ", but unit ", input_.units[i].name, " needs ",
                       needed, " bytes in frames of 2 MiB; give at least that, or 0"));
    };
    if (unit.parameters_framed &&
        unit.parameter_bytes.size() > memory_plan_.parameter_frame_bytes) {
      return too_small("max_live_parameters_bytes", unit.parameter_bytes.size(),
                       input_.options.max_live_parameters_bytes);
    }
    if (unit.gradients_framed && unit.gradient_bytes.size() > memory_plan_.gradient_frame_bytes) {
      return too_small("max_live_gradients_bytes", unit.gradient_bytes.size(),
                       input_.options.max_live_gradients_bytes);
    }
  }
  return absl::OkStatus();
}

absl::Status EngineCore::AllocateScratch() {
  ZH_ASSIGN_OR_RETURN(scratch_,
                      memory::HostBuffer::Allocate(
                          comm::Communicator::ScratchBytes(layout_.MaxShardElems(), DType::kFloat32,
                                                           communicator_.size()),
                          MemoryKind::kStaging, &ledger_));
  return absl::OkStatus();
}

void EngineCore::Start() {
  communicator_.SetScratch(
      {static_cast<std::byte*>(scratch_.data()), static_cast<size_t>(scratch_.bytes())});
  for (size_t unit = 0; unit < input_.units.size(); ++unit) Remember(static_cast<UnitId>(unit));
  device_ = device::CreateCpuDevice();
  update_stream_ = device_->CreateStream("update");
  executor_ = std::make_unique<comm::Executor>(communicator_.any_thread());
  gather_executor_ = executor_.get();
  if (gather_communicator_.get() != &communicator_ && communicator_.any_thread()) {
    own_gather_executor_ = std::make_unique<comm::Executor>(true);
    gather_executor_ = own_gather_executor_.get();
  }
  thread_ = std::thread([this] { Loop(); });
}

std::string EngineCore::DescribePlan() const {
  return absl::StrCat(
      "zero_stage ", input_.options.zero_stage, ", rank ", communicator_.rank(), " of ",
      communicator_.size(), ", ", layout_.bucket_count(), " buckets, ", layout_.records().size(),
      " records, update on ", update_site_->threads(), " thread(s), instruction set ",
      kernels::NameOf(update_site_->instruction_set()), "\n", ToString(plan_, input_.units));
}

}  // namespace zerohold::engine
