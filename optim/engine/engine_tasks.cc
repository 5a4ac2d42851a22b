// What the engine has others do: collectives on the communication thread, updates on the update
// stream. Each touches the operands of its operation and hands over by the queue.
#include <absl/strings/str_cat.h>

#include "optim/engine/engine_core.h"
#include "optim/engine/state_access.h"
#include "src/base/hash.h"
#include "src/base/status_macros.h"

namespace zerohold::engine {

void EngineCore::RunCollective(void* self, int64_t index) {
  auto& core = *static_cast<EngineCore*>(self);
  const Operation& operation = core.plan_.operations[index];
  const telemetry::Span span(core.trace_, telemetry::Lane::kComm,
                             operation.verb == Verb::kReduceScatter ? "ReduceScatter" : "AllGather",
                             operation.target);
  core.queue_.Push(
      {.kind = Event::Kind::kOperationDone, .index = index, .status = core.Collective(operation)});
}

absl::Status EngineCore::Collective(const Operation& operation) {
  const layout::Bucket bucket = layout_.BucketAt(operation.target);
  const layout::FlatSpace& space = layout_.spaces()[bucket.space];
  const int world = communicator_.size();
  shards_.clear();
  pieces_.clear();
  for (int rank = 0; rank < world; ++rank) {
    const layout::Range shard = layout_.ShardOf(bucket, rank, world);
    const int64_t begin = shard.begin - bucket.range.begin;
    shards_.push_back({begin, begin + shard.size()});
    pieces_.push_back(
        {rank, begin * int64_t{sizeof(float)}, shard.size() * int64_t{sizeof(float)}});
  }
  float* const buffer =
      (operation.operand == Operand::kGradient ? memory_->Gradients(bucket.space)
                                               : memory_->Parameters(bucket.space)) +
      bucket.range.begin;
  const std::string_view unit = input_.units[operation.unit].name;
  if (operation.verb == Verb::kAllGather) {
    return communicator_.AllGather({"AllGather", "bucket", operation.target, unit}, buffer,
                                   pieces_);
  }
  return communicator_.ReduceScatter({"ReduceScatter", "bucket", operation.target, unit},
                                     {.addends = buffer,
                                      .dtype = DType::kFloat32,
                                      .shards = shards_,
                                      .out = buffer + shards_[communicator_.rank()].begin,
                                      .divisor = divisor_,
                                      .norm = &agreement_.norm(),
                                      .norm_weight = space.norm_weight});
}

void EngineCore::RunAgreement(void* self, int64_t) {
  auto& core = *static_cast<EngineCore*>(self);
  const telemetry::Span span(core.trace_, telemetry::Lane::kComm, "agreement");
  core.queue_.Push({.kind = Event::Kind::kAgreementDone, .status = core.Agree()});
}

// The engine thread waits for this and touches none of it meanwhile. What the ranks have against
// the step goes into refusal_, the same on all of them; only a failed collective is an error here.
absl::Status EngineCore::Agree() {
  const std::vector<GroupOptions>& groups = input_.options.groups;
  agreement_.Begin(!step_local_.ok(), communicator_.rank(), communicator_.size(),
                   consistency_.Hash(groups));
  for (size_t unit = 0; unit < unit_steps_.size(); ++unit) {
    if (window_.Present(static_cast<UnitId>(unit)))
      agreement_.AddPresent(static_cast<UnitId>(unit));
  }
  ZH_RETURN_IF_ERROR(agreement_.Run(communicator_));
  if (agreement_.any_failed()) {
    refusal_ = comm::Agree(communicator_, step_local_);
  } else if (!agreement_.consistent()) {
    refusal_ = comm::AgreeOnText(communicator_, "what the trainer set or wrote since the last step",
                                 consistency_.Describe(groups));
  }
  return refusal_.ok() || absl::IsFailedPrecondition(refusal_) ? absl::OkStatus() : refusal_;
}

void EngineCore::RunAccess(void* self, int64_t) {
  auto& core = *static_cast<EngineCore*>(self);
  core.queue_.Push({.kind = Event::Kind::kAccessDone, .status = core.Access(*core.access_call_)});
}

// All ranks hear of one rank's bad arguments, and of different ones, before anything is touched.
absl::Status EngineCore::Access(Call& call) {
  ZH_RETURN_IF_ERROR(comm::Agree(communicator_, call.status));
  const bool read = call.kind == Call::Kind::kRead;
  const auto elems = static_cast<int64_t>(read ? call.out.size() : call.values.size());
  std::string text =
      absl::StrCat(read ? "Read" : "Write", " of state ", static_cast<int>(call.state),
                   " of parameter ", input_.parameters[call.parameter].name, ", elements [",
                   call.begin, ", ", call.begin + elems, ")");
  if (!read) absl::StrAppend(&text, ", hash of values ", base::Hash(std::as_bytes(call.values)));
  ZH_RETURN_IF_ERROR(comm::AgreeOnText(communicator_, "the arguments of a collective call", text));

  const layout::Layout::Place place = layout_.PlaceOf(call.parameter);
  const int64_t begin = place.range.begin + call.begin;
  const StateRange what{call.state, place.space, {begin, begin + elems}};
  if (read) return ReadState(communicator_, layout_, *memory_, what, call.out);
  WriteState(layout_, *memory_, what, call.values);
  return absl::OkStatus();
}

void EngineCore::RunUpdate(void* task) {
  const auto& update = *static_cast<UpdateTask*>(task);
  EngineCore& core = *update.core;
  const Operation& operation = core.plan_.operations[update.index];
  {
    const telemetry::Span span(core.trace_, telemetry::Lane::kUpdate, "Update", operation.target);
    core.update_site_->Update(operation.target, core.unit_steps_[operation.unit]);
  }
  core.queue_.Push({.kind = Event::Kind::kOperationDone, .index = update.index});
}

}  // namespace zerohold::engine
