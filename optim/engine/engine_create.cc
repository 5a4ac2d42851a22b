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
    if (parameter.dtype != DType::kFloat32) {
      return absl::UnimplementedError(
          bad("dtype ", NameOf(parameter.dtype),
              " belongs to mixed precision, which this version has not got;", " give fp32"));
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
  if (status.ok()) status = CheckParameters(input);
  layout::LayoutConfig config;
  config.world = communicator.size();
  config.rank = communicator.rank();
  config.update_world = input.options.zero_stage == 0 ? 1 : config.world;
  config.bucket_elems = input.options.bucket_elems;
  config.record_elems = input.options.record_elems;
  absl::StatusOr<layout::Layout> layout(absl::UnknownError("not planned"));
  if (status.ok()) {
    layout = layout::Layout::Create(config, input.parameters, input.units);
    status = layout.status();
  }
  ZH_RETURN_IF_ERROR(comm::Agree(communicator, status));
  // 2. The same input everywhere.
  ZH_RETURN_IF_ERROR(
      comm::AgreeOnText(communicator, "options, parameters and units", Describe(input)));
  // 3. Memory and threads.
  std::unique_ptr<EngineCore> core(new EngineCore(std::move(input), std::move(layout).value()));
  ZH_RETURN_IF_ERROR(core->Allocate());
  core->Start();
  return core;
}

EngineCore::EngineCore(Input input, layout::Layout layout)
    : input_(std::move(input)),
      layout_(std::move(layout)),
      communicator_(*input_.communicator),
      trace_(input_.options.trace_path, communicator_.rank()),
      plan_(BuildStepPlan(layout_,
                          {.gather_gradients = communicator_.size() > layout_.config().update_world,
                           .gather_parameters = layout_.config().update_world > 1})),
      queue_(plan_.operations.size() + 16),
      window_(input_.units),
      step_(plan_, static_cast<int>(input_.units.size()), *this),
      agreement_(static_cast<int>(input_.units.size())),
      consistency_(input_.units),
      unit_steps_(input_.units.size(), 0) {
  shards_.reserve(communicator_.size());
  pieces_.reserve(communicator_.size());
  unit_list_.reserve(input_.units.size());
  comm::CommunicatorSettings settings = communicator_.settings();
  settings.timeout_s = input_.options.communication_timeout_s;
  settings.check_order = input_.options.check_collective_order;
  settings.sent_bytes = &sent_bytes_;
  communicator_.Configure(settings);
}

absl::Status EngineCore::Allocate() {
  ZH_ASSIGN_OR_RETURN(memory_,
                      ModelMemory::Create(communicator_, layout_, &ledger_, input_.options.notice));
  ZH_RETURN_IF_ERROR(comm::Agree(communicator_, AllocateScratch()));
  ZH_ASSIGN_OR_RETURN(const int threads,
                      UpdateThreads(communicator_, input_.options.update_threads));
  update_site_ = std::make_unique<UpdateSite>(layout_, *memory_, input_.options, threads);
  return absl::OkStatus();
}

absl::Status EngineCore::AllocateScratch() {
  ZH_ASSIGN_OR_RETURN(scratch_,
                      memory::HostBuffer::Allocate(
                          comm::Communicator::ScratchBytes(layout_.MaxShardElems(), DType::kFloat32,
                                                           communicator_.size()),
                          MemoryKind::kStaging, &ledger_));
  communicator_.SetScratch(
      {static_cast<std::byte*>(scratch_.data()), static_cast<size_t>(scratch_.bytes())});
  return absl::OkStatus();
}

void EngineCore::Start() {
  if (!communicator_.any_thread() && communicator_.rank() == 0) {
    input_.options.notice(
        "MPI gives less than MPI_THREAD_MULTIPLE, so collectives run inside the engine's calls and "
        "do not"
        " overlap with compute; call MPI_Init_thread with MPI_THREAD_MULTIPLE");
  }
  update_tasks_.reserve(plan_.operations.size());
  for (size_t i = 0; i < plan_.operations.size(); ++i) {
    update_tasks_.push_back({this, static_cast<int>(i)});
  }
  device_ = device::CreateCpuDevice();
  update_stream_ = device_->CreateStream("update");
  executor_ = std::make_unique<comm::Executor>(communicator_.any_thread());
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
