// What the engine has others do: collectives on the communication threads, arithmetic on the update
// stream. Each touches the operands of its operation and hands over by the queue.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <bit>

#include "optim/engine/accumulate.h"
#include "optim/engine/engine_core.h"
#include "src/base/hash.h"
#include "src/base/status_macros.h"

namespace zerohold::engine {

void EngineCore::RunCollective(void* context, int64_t) {
  auto& issue = *static_cast<Issue*>(context);
  EngineCore& core = *issue.core;
  const Operation& operation = core.plan_.operations[issue.index];
  const telemetry::Span span(core.trace_, telemetry::Lane::kComm, NameOf(operation.verb),
                             operation.target);
  core.queue_.Push(
      {.kind = Event::Kind::kOperationDone, .issue = &issue, .status = core.Collective(issue)});
}

absl::Status EngineCore::Collective(const Issue& issue) {
  const Operation& operation = plan_.operations[issue.index];
  const layout::Bucket bucket = layout_.BucketAt(operation.target);
  if (operation.verb == Verb::kReduceScatter) return ReduceScatter(issue, bucket);
  if (operation.verb == Verb::kAllGather) return AllGather(operation, bucket);
  PointSumsAt(bucket);
  const int64_t elems = layout_.OwnShardOf(bucket).size();
  CommunicatorOf(bucket.space)
      .FinishSum({.levels = levels_}, issue.round + 1, elems, MeanOf(bucket, issue.divisor));
  return absl::OkStatus();
}

absl::Status EngineCore::ReduceScatter(const Issue& issue, const layout::Bucket& bucket) {
  const layout::FlatSpace& space = layout_.spaces()[bucket.space];
  const SpaceMemory& memory = memory_->space(bucket.space);
  CutShards(bucket, shards_);
  PointSumsAt(bucket);
  const auto landed = [&](absl::Status status) {
    if (status.ok() && Spills(bucket.space)) gradient_spill_->Land(bucket);
    return status;
  };
  const bool weighted = input_.options.reduction == GradientReduction::kWeightedMean;
  return landed(
      CommunicatorOf(bucket.space)
          .ReduceScatter(
              {"ReduceScatter", "bucket", bucket.number, input_.units[space.unit].name},
              {.addends = issue.addends,
               .dtype = memory.full_sum.base != nullptr ? DType::kFloat32 : space.dtype,
               .shards = shards_,
               .weights = weighted ? std::span<const float>(weights_[space.communicator].of_ranks)
                                   : std::span<const float>(),
               .sums = {.levels = levels_, .round = issue.round},
               .mean = MeanOf(bucket, issue.divisor)}));
}

// Its reduced gradients go to disk.
bool EngineCore::Spills(int32_t space) const { return memory_plan_.placement.gradients[space]; }

comm::Communicator& EngineCore::CommunicatorOf(int32_t space) const {
  return *input_.communicators[layout_.spaces()[space].communicator];
}

comm::Communicator& EngineCore::GatherCommunicatorOf(int32_t space) const {
  return *gather_communicators_[layout_.spaces()[space].communicator];
}

// Elements from the bucket's first.
void EngineCore::CutShards(const layout::Bucket& bucket, std::vector<layout::Range>& shards) const {
  const int world = layout_.MembershipIn(bucket.space).world;
  shards.clear();
  for (int rank = 0; rank < world; ++rank) {
    const layout::Range shard = layout_.ShardOf(bucket, rank);
    const int64_t begin = shard.begin - bucket.range.begin;
    shards.push_back({begin, begin + shard.size()});
  }
}

// Where this rank's shard of the bucket begins among what it holds: itself, or the whole bucket.
int64_t EngineCore::HeldIndex(const layout::Bucket& bucket, layout::Range shard) const {
  return layout_.HeldBegin(bucket) + shard.begin - layout_.HeldOf(bucket).begin;
}

void EngineCore::PointSumsAt(const layout::Bucket& bucket) {
  const layout::Range shard = layout_.OwnShardOf(bucket);
  levels_.clear();
  for (float* sum : memory_->space(bucket.space).sums) {
    levels_.push_back(sum + HeldIndex(bucket, shard));
  }
}

comm::Mean EngineCore::MeanOf(const layout::Bucket& bucket, float divisor) {
  const layout::FlatSpace& space = layout_.spaces()[bucket.space];
  const Array& result = memory_->space(bucket.space).result;
  const layout::Range shard = layout_.OwnShardOf(bucket);
  const bool weighted = input_.options.reduction == GradientReduction::kWeightedMean;
  return {.out = Spills(bucket.space) ? gradient_spill_->shard()
                                      : result.At(shard.begin, HeldIndex(bucket, shard)),
          .dtype = result.dtype,
          .rounded_to = weighted ? DType::kFloat32 : space.dtype,
          .divisor = weighted ? static_cast<float>(weights_[space.communicator].sum) : divisor,
          .norm = &agreement_.norm(),
          .norm_weight = space.norm_weight};
}

absl::Status EngineCore::AllGather(const Operation& operation, const layout::Bucket& bucket) {
  const bool gradient = operation.operand == Operand::kGradient;
  const SpaceMemory& memory = memory_->space(bucket.space);
  const Array& array = gradient ? memory.result : memory.copy;
  CutShards(bucket, shards_);
  pieces_.clear();
  const int64_t elem_bytes = SizeOf(array.dtype);
  for (size_t rank = 0; rank < shards_.size(); ++rank) {
    pieces_.push_back({static_cast<int>(rank), shards_[rank].begin * elem_bytes,
                       shards_[rank].size() * elem_bytes});
  }
  return CommunicatorOf(bucket.space)
      .AllGather({"AllGather", "bucket", bucket.number, input_.units[operation.unit].name},
                 array.At(bucket.range.begin, layout_.HeldBegin(bucket)), pieces_);
}

void EngineCore::RunGather(void* context, int64_t) {
  auto& issue = *static_cast<Issue*>(context);
  EngineCore& core = *issue.core;
  const telemetry::Span span(core.trace_, telemetry::Lane::kComm, "gather unit", issue.index);
  absl::Status status = core.GatherUnit(issue);
  if (core.copy_reader_ != nullptr) core.copy_reader_->Finish(&issue.reading);
  core.queue_.Push({.kind = Event::Kind::kGathered, .issue = &issue, .status = std::move(status)});
}

// Brings a unit's parameters into its frame: the own shards from where they are held, the others'
// from them.
absl::Status EngineCore::GatherUnit(Issue& issue) {
  absl::Status read;
  if (copy_reader_ != nullptr) read = copy_reader_->Wait(&issue.reading);
  const layout::UnitPlace& unit = layout_.units()[issue.index];
  const std::string_view name = input_.units[issue.index].name;
  for (int i = unit.first_space; i < unit.last_space; ++i) {
    const layout::FlatSpace& space = layout_.spaces()[i];
    const int64_t elem_bytes = SizeOf(space.dtype);
    std::byte* const copy = issue.frame + space.parameter_offset_bytes - unit.parameter_bytes.begin;
    for (int64_t b = space.first_bucket; b < space.first_bucket + space.bucket_count; ++b) {
      const layout::Bucket bucket = layout_.BucketAt(b);
      const layout::Range held = layout_.HeldOf(bucket);
      FillHeld(i, bucket, copy + held.begin * elem_bytes);
      CutShards(bucket, gather_shards_);
      gather_pieces_.clear();
      for (size_t rank = 0; rank < gather_shards_.size(); ++rank) {
        gather_pieces_.push_back({static_cast<int>(rank), gather_shards_[rank].begin * elem_bytes,
                                  gather_shards_[rank].size() * elem_bytes});
      }
      ZH_RETURN_IF_ERROR(GatherCommunicatorOf(i).AllGather(
          {"AllGather", "parameters", bucket.number, name}, copy + bucket.range.begin * elem_bytes,
          gather_pieces_));
    }
    coherence_.Remember(i, copy);
  }
  // All took part, and none goes on with what one could not read; over each communicator once, and
  // who hears it in one tells it in the next.
  for (int i = unit.first_space; i < unit.last_space && CopiesMayBeAway(); ++i) {
    comm::Communicator& communicator = GatherCommunicatorOf(i);
    bool again = false;
    for (int before = unit.first_space; before < i; ++before) {
      again |= &GatherCommunicatorOf(before) == &communicator;
    }
    absl::Status told = again ? absl::OkStatus() : comm::Agree(communicator, read);
    if (!told.ok()) read = std::move(told);
  }
  return read;
}

// This rank's shard of a bucket, unless it came from disk.
void EngineCore::FillHeld(int32_t space, const layout::Bucket& bucket, std::byte* to) const {
  const Array& copy = memory_->space(space).copy;
  const layout::Range held = layout_.HeldOf(bucket);
  const int64_t bytes = held.size() * SizeOf(copy.dtype);
  const Placement& placement = memory_plan_.placement;
  if (!placement.copies[space]) {
    // Not memcpy: a rank that holds nothing of the space has no array to point at.
    std::copy_n(copy.At(held.begin, layout_.HeldBegin(bucket)), bytes, to);
  } else if (placement.drop_copies) {
    std::fill_n(to, bytes, std::byte{0});
  }
}

// The same on all ranks, whatever each has where.
bool EngineCore::CopiesMayBeAway() const {
  const OffloadOptions& offload = input_.options.offload;
  return !offload.nvme_paths.empty() && offload.host.parameters != Budget::All();
}

// Every rank's weight of the micro-batch, so that each can multiply what it gets from the others.
void EngineCore::RunShareWeight(void* self, int64_t weight_bits) {
  auto& core = *static_cast<EngineCore*>(self);
  const auto mine = static_cast<float>(std::bit_cast<double>(weight_bits));
  absl::Status status;
  for (size_t i = 0; i < core.weights_.size() && status.ok(); ++i) {
    comm::Communicator& communicator = *core.input_.communicators[i];
    Weights& weights = core.weights_[i];
    weights.of_ranks[communicator.rank()] = mine;
    core.pieces_.clear();
    for (int rank = 0; rank < communicator.size(); ++rank) {
      core.pieces_.push_back({rank, rank * int64_t{sizeof(float)}, sizeof(float)});
    }
    status = communicator.AllGather({"weight of the micro-batch"}, weights.of_ranks.data(),
                                    core.pieces_);
    for (const float weight : weights.of_ranks) weights.sum += weight;
  }
  core.queue_.Push({.kind = Event::Kind::kWeightShared, .status = std::move(status)});
}

void EngineCore::RunAgreement(void* self, int64_t) {
  auto& core = *static_cast<EngineCore*>(self);
  const telemetry::Span span(core.trace_, telemetry::Lane::kComm, "agreement");
  core.queue_.Push({.kind = Event::Kind::kAgreementDone, .status = core.Agree()});
}

// The engine thread waits for this and touches none of it meanwhile. What the ranks have against
// the step goes into refusal_, the same on all of them; only a failed collective is an error here.
absl::Status EngineCore::Agree() {
  if (gradient_spill_ != nullptr) spilled_ = gradient_spill_->Drain();
  if (!spilled_.ok()) step_local_ = spilled_;
  for (Weights& weights : weights_) weights.sum = 0.0;  // what they divide is finished
  agreement_.Begin(window_.AnyPresent());
  for (int32_t space = 0; space < std::ssize(space_steps_); ++space) {
    const layout::FlatSpace& flat = layout_.spaces()[space];
    if (!flat.frozen && window_.Present(flat.unit)) agreement_.AddPresent(space);
  }
  for (int i = static_cast<int>(weights_.size()) - 1; i >= 0; --i) {
    absl::Status refused;
    ZH_RETURN_IF_ERROR(AgreeOver(i, &refused));
    // What a smaller group of ranks disagrees on, all of them hear in the first one's.
    (i == 0 ? refusal_ : step_local_).Update(refused);
  }
  return absl::OkStatus();
}

absl::Status EngineCore::AgreeOver(int index, absl::Status* refused) {
  const std::vector<GroupOptions>& groups = input_.options.groups;
  comm::Communicator& communicator = *input_.communicators[index];
  ZH_RETURN_IF_ERROR(
      agreement_.Run(communicator, index, !step_local_.ok(), consistency_.Hash(groups, index)));
  if (index == 0 && agreement_.any_failed()) {
    *refused = comm::Agree(communicator, step_local_);
  } else if (!agreement_.consistent()) {
    *refused = comm::AgreeOnText(communicator, "what the trainer set or wrote since the last step",
                                 consistency_.Describe(groups, index));
  }
  return refused->ok() || absl::IsFailedPrecondition(*refused) ? absl::OkStatus() : *refused;
}

void EngineCore::RunAccess(void* self, int64_t) {
  auto& core = *static_cast<EngineCore*>(self);
  core.queue_.Push({.kind = Event::Kind::kAccessDone, .status = core.Access(*core.access_call_)});
}

// All ranks hear of one rank's bad arguments, and of different ones, before anything is touched.
absl::Status EngineCore::Access(Call& call) {
  const auto count = static_cast<ParameterId>(input_.parameters.size());
  const bool known = call.parameter >= 0 && call.parameter < count;
  comm::Communicator& communicator =
      *input_.communicators[known ? input_.parameters[call.parameter].communicator : 0];
  ZH_RETURN_IF_ERROR(comm::Agree(communicator, call.status));
  const bool read = call.kind == Call::Kind::kRead;
  const auto elems = static_cast<int64_t>(read ? call.out.size() : call.values.size());
  std::string text =
      absl::StrCat(read ? "Read" : "Write", " of state ", static_cast<int>(call.state),
                   " of parameter ", input_.parameters[call.parameter].name, ", elements [",
                   call.begin, ", ", call.begin + elems, ")");
  if (!read) absl::StrAppend(&text, ", hash of values ", base::Hash(std::as_bytes(call.values)));
  ZH_RETURN_IF_ERROR(comm::AgreeOnText(communicator, "the arguments of a collective call", text));

  const layout::Layout::Place place = layout_.PlaceOf(call.parameter);
  const int64_t begin = place.range.begin + call.begin;
  const StateRange what{call.state, place.space, {begin, begin + elems}};
  if (read) return access_->Read(communicator, what, call.out);
  // Every rank has the values, so a copy of all of them that is here needs no gather.
  const UnitId unit = layout_.spaces()[place.space].unit;
  const bool here = !layout_.units()[unit].parameters_framed || residency_.ExtentOf(unit);
  return comm::Agree(communicator,
                     access_->Write(what, call.values, here ? Copy(place.space) : nullptr));
}

void EngineCore::RunBlame(void* self, int64_t) {
  auto& core = *static_cast<EngineCore*>(self);
  core.queue_.Push({.kind = Event::Kind::kBlamed, .status = core.Blame()});
}

// The lowest parameter, over all ranks, whose reduced gradient is not finite.
absl::Status EngineCore::Blame() {
  const auto count = static_cast<int64_t>(input_.parameters.size());
  int64_t first = count;
  absl::Status read;
  for (int64_t id = 0; id < count && first == count; ++id) {
    if (input_.parameters[id].frozen) continue;
    const layout::Layout::Place place = layout_.PlaceOf(static_cast<ParameterId>(id));
    const absl::StatusOr<bool> finite = access_->GradientFinite(place.space, place.range);
    if (!finite.value_or(false)) first = id;  // a record that is lost ends the engine below
    read.Update(finite.status());
  }
  ZH_RETURN_IF_ERROR(comm::Agree(communicator_, read));
  int64_t negated = -first;
  ZH_RETURN_IF_ERROR(communicator_.AllReduce({"blame"}, {}, {&negated, 1}, {}));
  // Ranks of different communicators know different parameters: one that has it says its name.
  const bool mine = -negated < count && first == -negated;
  const absl::Status named =
      comm::Agree(communicator_, mine ? absl::FailedPreconditionError(input_.parameters[first].name)
                                      : absl::OkStatus());
  if (!named.ok() && !absl::IsFailedPrecondition(named)) return named;
  const auto text = std::string(named.message());
  const std::string before = ": ";  // the rank that says it, which is whose shard it is, no more
  blamed_ = named.ok() ? "none" : text.substr(text.find(before) + before.size());
  return absl::OkStatus();
}

void EngineCore::RunClosing(void* self, int64_t) {
  auto& core = *static_cast<EngineCore*>(self);
  core.queue_.Push(
      {.kind = Event::Kind::kClosed, .status = comm::Agree(core.communicator_, core.storage_)});
}

void EngineCore::RunSpilled(void* self, int64_t) {
  auto& core = *static_cast<EngineCore*>(self);
  core.queue_.Push({.kind = Event::Kind::kSpilled, .status = core.gradient_spill_->Wait()});
}

void EngineCore::Moved(void* context, absl::Status status) {
  auto& issue = *static_cast<Issue*>(context);
  issue.core->queue_.Push(
      {.kind = Event::Kind::kOperationDone, .issue = &issue, .status = std::move(status)});
}

void EngineCore::RunUpdate(void* context) {
  auto& issue = *static_cast<Issue*>(context);
  EngineCore& core = *issue.core;
  const Operation& operation = core.plan_.operations[issue.index];
  absl::Status status = core.records_->Check(operation.target);
  if (status.ok()) {
    const telemetry::Span span(core.trace_, telemetry::Lane::kUpdate, "Update", operation.target);
    core.update_site_->Update(operation.target, core.space_steps_[operation.space]);
    core.records_->Seal(operation.target);
  }
  Moved(context, std::move(status));
}

void EngineCore::RunAccumulate(void* context) {
  auto& issue = *static_cast<Issue*>(context);
  EngineCore& core = *issue.core;
  const layout::UnitPlace& unit = core.layout_.units()[issue.index];
  const telemetry::Span span(core.trace_, telemetry::Lane::kUpdate, "accumulate", issue.index);
  for (int i = unit.first_space; i < unit.last_space; ++i) {
    const layout::FlatSpace& space = core.layout_.spaces()[i];
    if (space.frozen) continue;
    const SpaceMemory& memory = core.memory_->space(i);
    Accumulate(memory.gradient.base, space.dtype, space.elems, issue.round > 0,
               reinterpret_cast<float*>(memory.full_sum.base));
  }
  RunAccumulateNothing(context);
}

// Behind what earlier micro-batches of the unit added.
void EngineCore::RunAccumulateNothing(void* context) {
  auto& issue = *static_cast<Issue*>(context);
  issue.core->queue_.Push({.kind = Event::Kind::kAccumulated, .issue = &issue});
}

}  // namespace zerohold::engine
