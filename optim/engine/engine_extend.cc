// Adding units, or moving records: another core is made over the memory of the one at work, which
// stays as it was until all ranks have theirs; then its threads end and the other takes over.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "optim/engine/engine_core.h"
#include "src/base/status_macros.h"

namespace zerohold::engine {
namespace {

template <typename T>
void Append(std::vector<T>& list, const std::vector<T>& more) {
  list.insert(list.end(), more.begin(), more.end());
}

std::string Describe(const Addition& addition, int communicator) {
  std::string text = layout::Describe(addition.parameters, addition.units, communicator);
  for (size_t i = 0; i < addition.groups.size(); ++i) {
    absl::StrAppend(&text, "added ", DescribeGroup(i, addition.groups[i]));
  }
  if (addition.offload) absl::StrAppend(&text, DescribeOffload(*addition.offload));
  return text;
}

// What was thrown away does not come back.
absl::Status CheckMove(const OffloadOptions& before, const OffloadOptions& after) {
  const auto dropped = [](const OffloadOptions& offload) {
    const bool drops = offload.drop_parameters;
    return std::tuple(drops, drops ? offload.host.parameters.bytes : 0,
                      drops && offload.nvme_paths.empty());
  };
  if (dropped(before) == dropped(after)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "Move: drop_parameters stays what Create was given, and where it is true so do "
      "host.parameters and that there are nvme_paths");
}

// Over all communicators, as when an engine is made.
absl::Status CompareOverRanks(const EngineCore::Input& input, const Addition& addition) {
  return AgreeOnTexts(
      input.communicators,
      addition.offload ? "where records shall rest" : "added parameters, units and groups",
      [&](int i) { return Describe(addition, i); });
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineCore>> EngineCore::Extend(EngineCore& core,
                                                               const Addition& addition) {
  Call call{.kind = Call::Kind::kExtend, .addition = &addition};
  core.Submit(call);
  std::unique_ptr<EngineCore> successor = std::move(core.successor_);
  ZH_RETURN_IF_ERROR(call.status);
  // From here on nothing can fail, and nothing is in flight.
  core.in_charge_ = false;
  core.Stop().IgnoreError();
  successor->Inherit(core);
  successor->TakeCharge();
  return successor;
}

absl::Status EngineCore::CheckExtend(const Addition& addition) const {
  ZH_RETURN_IF_ERROR(storage_);  // a record that is lost is not forgotten
  const char* const name = addition.offload ? "Move" : "AddUnits";
  if (window_.micro_batches() > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": a micro-batch is open; call Step first"));
  }
  const UnitId acquired = window_.FirstAcquired();
  if (acquired >= 0) {
    return absl::FailedPreconditionError(absl::StrCat(name, ": unit ", input_.units[acquired].name,
                                                      " is still acquired; Release it first"));
  }
  return CheckCopies(name);
}

void EngineCore::RunExtend(void* self, int64_t) {
  auto& core = *static_cast<EngineCore*>(self);
  core.queue_.Push(
      {.kind = Event::Kind::kAccessDone, .status = core.BuildSuccessor(*core.access_call_)});
}

// In the collective steps of Create. The engine thread waits for it and changes nothing that it
// reads.
absl::Status EngineCore::BuildSuccessor(const Call& call) {
  const Addition& addition = *call.addition;
  Input input = input_;
  Append(input.parameters, addition.parameters);
  Append(input.units, addition.units);
  Append(input.options.groups, addition.groups);
  if (addition.offload) input.options.offload = *addition.offload;
  std::vector<UnitId> generations = layout_.config().generations;
  if (!addition.offload) generations.push_back(static_cast<UnitId>(input_.units.size()));

  absl::Status status = call.status;
  if (status.ok()) status = input.options.Validate();
  absl::StatusOr<layout::Layout> layout(absl::UnknownError("not planned"));
  if (status.ok()) {
    layout = Plan(input, std::move(generations));
    status = layout.status();
  }
  if (status.ok() && addition.offload) {
    input.options.offload = InBytes(input.options, *layout);
    status = CheckMove(input_.options.offload, input.options.offload);
  }
  ZH_RETURN_IF_ERROR(comm::Agree(communicator_, status));
  // What was there before is the same already, or the next Step says what is not.
  ZH_RETURN_IF_ERROR(CompareOverRanks(input, addition));
  std::unique_ptr<EngineCore> successor(
      new EngineCore(std::move(input), std::move(layout).value(), this));
  ZH_RETURN_IF_ERROR(successor->Allocate(this));
  successor_ = std::move(successor);
  return absl::OkStatus();
}

// What is not of the memory that both have. Frames are empty, and copies that stay are what they
// were: CheckExtend has seen it.
void EngineCore::Inherit(const EngineCore& before) {
  std::ranges::copy(before.space_steps_, space_steps_.begin());
  applied_steps_ = before.applied_steps_;
  loss_scaler_ = before.loss_scaler_;
  loss_scale_.store(loss_scaler_.scale());
  consistency_.Inherit(before.consistency_);
  residency_.InheritRoutes(before.residency_);
  stats_ = before.stats_;
}

}  // namespace zerohold::engine
