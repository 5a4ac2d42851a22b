// The engine thread's loop, and the calls that it answers at once.
#include "optim/engine/engine_core.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "optim/kernels/update.h"
#include "src/base/float_mode.h"
#include "src/base/status_macros.h"

namespace zerohold::engine {
namespace {

// A collective failed, not what it was about.
bool Broken(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsDeadlineExceeded(status) || absl::IsCancelled(status);
}

}  // namespace

void EngineCore::Submit(Call& call) {
  const telemetry::Span span(trace_, telemetry::Lane::kCalls,
                             call.kind == Call::Kind::kStep ? "Step" : "call");
  queue_.Push({.kind = Event::Kind::kCall, .call = &call});
  executor_->Wait([](void* context) { return static_cast<Call*>(context)->answered.load(); },
                  &call);
  for (const Move& move : call.moves) {
    const absl::Status moved = CarryOut(move);
    if (moved.ok()) continue;
    call.status.Update(moved);
    queue_.Push({.kind = Event::Kind::kNotMoved, .status = moved});
  }
}

// On the caller's thread: what it must not see vanish or appear under it, it moves itself.
absl::Status EngineCore::CarryOut(const Move& move) {
  const layout::UnitPlace& unit = layout_.units()[move.unit];
  const Arenas& arenas = memory_->arenas();
  const ArenaPair& pair = memory_->ArenasOf(move.unit);
  char* const parameters = pair.parameters.base() + unit.parameter_bytes.begin;
  char* const gradients = pair.gradients.base() + unit.gradient_bytes.begin;
  switch (move.kind) {
    case Move::Kind::kAttachParameters:
      return arenas.parameter_frames->Attach(move.extent, parameters);
    case Move::Kind::kDetachParameters:
      return arenas.parameter_frames->Detach(move.extent, parameters);
    case Move::Kind::kDetachGradients:
      return arenas.gradient_frames->Detach(move.extent, gradients);
    case Move::Kind::kAttachGradients:
      ZH_RETURN_IF_ERROR(arenas.gradient_frames->Attach(move.extent, gradients));
      [[fallthrough]];
    case Move::Kind::kZeroGradients:
      std::fill_n(gradients, unit.gradient_bytes.size(), 0);
      return absl::OkStatus();
  }
  return absl::OkStatus();
}

absl::Status EngineCore::Stop() {
  if (!thread_.joinable()) return absl::OkStatus();
  queue_.Push({.kind = Event::Kind::kStop});
  thread_.join();
  // Peers may be waiting for this rank's part of the step: they hear that it does not come, by the
  // verb in flight or else from one that ends at once. Between steps there are gathers ahead of the
  // trainer alone; the peers have issued the same, and they end by themselves.
  const bool leaves = in_charge_ && (!failed_.ok() || window_.micro_batches() > 0);
  for (const auto* list : {&input_.communicators, &gather_communicators_}) {
    if (!leaves) break;
    for (const auto& communicator : *list) communicator->Cancel(failed_);
  }
  executor_.reset();  // what was posted ends before
  own_gather_executor_.reset();
  for (const auto* list : {&input_.communicators, &gather_communicators_}) {
    if (!leaves) break;
    for (const auto& communicator : *list) {
      communicator->AllReduce({"Close"}, {}, {}, {}).IgnoreError();
    }
  }
  update_stream_->Synchronize();
  if (gradient_spill_ != nullptr) storage_.Update(gradient_spill_->Drain());
  absl::Status status = failed_;
  status.Update(storage_);  // what no step has told yet
  if (in_charge_) status.Update(trace_.Write());
  LetGo();
  return status;
}

EngineCore::~EngineCore() {
  Stop().IgnoreError();
  LetGo();
}

// The communicators outlive what they were lent.
void EngineCore::LetGo() {
  const std::shared_ptr<const Hold> hold = std::exchange(input_.hold, nullptr);
  if (hold == nullptr || hold.use_count() > 1) return;  // another core has them
  for (const auto& communicator : input_.communicators) {
    communicator->SetScratch({});
    comm::CommunicatorSettings settings = communicator->settings();
    settings.sent_bytes = nullptr;
    communicator->Configure(settings);
  }
}

void EngineCore::Loop() {
  const base::StandardFloatMode floats;
  while (true) {
    Event event = queue_.Pop();
    if (event.kind == Event::Kind::kStop) stopping_ = true;
    Handle(event);
    if (failed_.ok()) {
      do {
        TakeVerdictIfQuiet();
        RequestStepIfReady();
        step_.Pump();
        FinishStepIfDone();
      } while (TakeHeldCall());
      PostGathers();
      AnswerAcquireIfReady();
      PostAccessIfQuiet();
    }
    AnswerQuiesceIfQuiet();
    // A step that was answered is done: peers count on this rank's part of it.
    if (stopping_ && !(applying_ && failed_.ok())) return;
  }
}

void EngineCore::Handle(Event& event) {
  int index = -1;
  bool last = true;
  bool added = false;
  if (event.issue != nullptr) {
    index = event.issue->index;
    last = event.issue->last;
    added = event.issue->addends != nullptr;
    free_issues_.push_back(event.issue);
  }
  const auto fails = [&] {
    if (!event.status.ok()) Fail(event.status);
    return !failed_.ok();
  };
  switch (event.kind) {
    case Event::Kind::kCall:
      moves_.clear();
      if (!failed_.ok()) return Answer(*event.call, failed_);
      if (MayGoOn(*event.call)) return HandleCall(*event.call);
      held_call_ = event.call;
      return;
    case Event::Kind::kAccessDone:
      return AnswerAccess(event.status);
    case Event::Kind::kOperationDone:
      return OperationDone(index, added, event.status);
    case Event::Kind::kGathered:
      --in_flight_;
      --gathering_;
      --gathers_in_flight_[index];
      fails();
      return;
    case Event::Kind::kWeightShared:
      --in_flight_;
      fails();
      return;
    case Event::Kind::kAccumulated:
      --accumulating_;
      if (last) step_.UnitReady(index);
      return;
    case Event::Kind::kAgreementDone:
      agreed_ = !fails();
      return;
    case Event::Kind::kBlamed:
      if (!fails()) Skip();
      return;
    case Event::Kind::kClosed:
      if (!fails()) step_.ClosingDone();
      return;
    case Event::Kind::kNotMoved:
      fails();
      return;
    case Event::Kind::kSpilled:
      spilling_ = false;
      storage_.Update(event.status);
      return Answer(*std::exchange(quiesce_call_, nullptr), failed_.ok() ? storage_ : failed_);
    case Event::Kind::kStop:
      return;
  }
}

// `added`: this rank had gradients for it.
void EngineCore::OperationDone(int index, bool added, const absl::Status& status) {
  const Operation& operation = plan_.operations[index];
  if (OfRecord(operation)) return RecordDone(index, status);
  --in_flight_;
  if (!status.ok()) Fail(status);
  if (!failed_.ok()) return;
  if (operation.verb == Verb::kReduceScatter) {
    --reductions_in_flight_[operation.unit];
    // Not for a round in which it was zero: a later one may have its frame in flight already.
    if (added) gradient_frames_.Done(operation.unit);
  }
  step_.OperationDone(index);
}

// For good: the ranks are no longer in step with each other.
void EngineCore::Fail(const absl::Status& status) {
  if (!failed_.ok()) return;
  failed_ = status;
  if (step_call_ != nullptr) Answer(*std::exchange(step_call_, nullptr), failed_);
  if (acquire_call_ != nullptr) Answer(*std::exchange(acquire_call_, nullptr), failed_);
  if (held_call_ != nullptr) Answer(*std::exchange(held_call_, nullptr), failed_);
  if (std::exchange(access_due_, false)) Answer(*std::exchange(access_call_, nullptr), failed_);
}

bool EngineCore::Overlaps() const {
  return input_.options.overlap_next_forward && executor_->own_thread();
}

// Whether a call touches nothing that a step which was answered still works on. Weights of
// micro-batches are shared on the channel of its gathers. And a collective call comes behind the
// reductions of what was reported before it, however long sums take.
bool EngineCore::MayGoOn(const Call& call) const {
  const bool collective = call.kind == Call::Kind::kRead || call.kind == Call::Kind::kWrite ||
                          call.kind == Call::Kind::kExtend;
  if (collective && accumulating_ > 0) return false;
  if (!applying_) return true;
  const bool weighted = input_.options.reduction == GradientReduction::kWeightedMean;
  switch (call.kind) {
    case Call::Kind::kBeginMicroBatch:
      return window_.micro_batches() == 0 && !weighted;
    case Call::Kind::kAcquire:
      return call.mode == AcquireMode::kForward || call.mode == AcquireMode::kEvaluate;
    case Call::Kind::kRelease:
      return !window_.Writing(call.unit);
    case Call::Kind::kSetGroup:
      return true;
    default:
      return false;
  }
}

bool EngineCore::TakeHeldCall() {
  if (held_call_ == nullptr || !MayGoOn(*held_call_)) return false;
  HandleCall(*std::exchange(held_call_, nullptr));
  return true;
}

void EngineCore::Answer(Call& call, absl::Status status) {
  call.status = std::move(status);
  call.moves = moves_;
  // The call is gone as soon as it sees the answer.
  call.answered.store(true);
  executor_->Wake();
}

void EngineCore::HandleCall(Call& call) {
  switch (call.kind) {
    case Call::Kind::kBeginMicroBatch:
      return BeginMicroBatch(call);
    case Call::Kind::kAcquire:
      return Acquire(call);
    case Call::Kind::kRelease:
      return Release(call);
    case Call::Kind::kGradReady:
    case Call::Kind::kGradAbsent:
      return Report(call);
    case Call::Kind::kSetGroup:
      return SetGroup(call);
    case Call::Kind::kStep:
      return BeginStep(call);
    case Call::Kind::kAdopt:
      return Adopt(call);
    case Call::Kind::kRead:
    case Call::Kind::kWrite:
      if (call.status.ok()) call.status = CheckAccess(call);
      access_call_ = &call;
      access_due_ = true;
      return;
    case Call::Kind::kExtend:
      call.status = CheckExtend(*call.addition);
      access_call_ = &call;
      access_due_ = true;
      return;
    case Call::Kind::kQuiesce:
      quiesce_call_ = &call;
      return;
  }
}

// Both touch what gathers that were sent ahead read; one that is refused touches nothing, and peers
// that hear of it only now take part in no such gather before.
void EngineCore::PostAccessIfQuiet() {
  if (!access_due_ || (access_call_->status.ok() && gathering_ > 0)) return;
  access_due_ = false;
  const bool extends = access_call_->kind == Call::Kind::kExtend;
  executor_->Post({extends ? &RunExtend : &RunAccess, this, 0});
}

// What is acquired changes under nobody: at stage 3 the trainer would go on with the old values.
absl::Status EngineCore::CheckAccess(const Call& call) const {
  ZH_RETURN_IF_ERROR(storage_);  // behind a record that is lost no other was updated
  if (window_.micro_batches() > 0) {
    return absl::FailedPreconditionError("Read and Write: a micro-batch is open; call Step first");
  }
  const kernels::RuleFacts& rule = *kernels::FactsOf(input_.options.rule);
  const bool moment1 = call.state == StateKind::kMoment1;
  if ((moment1 && !rule.moment1) || (call.state == StateKind::kMoment2 && !rule.moment2)) {
    return absl::FailedPreconditionError(
        absl::StrCat("parameter ", input_.parameters[call.parameter].name, " has no moment",
                     moment1 ? 1 : 2, ": the rule ", rule.name, " keeps none"));
  }
  if (call.kind == Call::Kind::kRead) return absl::OkStatus();
  const UnitId unit = layout_.spaces()[layout_.PlaceOf(call.parameter).space].unit;
  const UnitId holds = window_.FirstHolding(unit);
  if (holds < 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Write of parameter ", input_.parameters[call.parameter].name, ": unit ",
                   input_.units[holds].name, " is acquired; Release it first"));
}

void EngineCore::SetGroup(Call& call) {
  const auto groups = static_cast<int>(input_.options.groups.size());
  absl::Status status;
  if (call.group < 0 || call.group >= groups) {
    status = absl::InvalidArgumentError(
        absl::StrCat("SetGroup: group ", call.group, " does not exist; there are ", groups));
  } else {
    status = call.group_options->Validate(input_.options.rule);
    if (status.ok()) input_.options.groups[call.group] = *call.group_options;
  }
  Answer(call, std::move(status));
}

// Units in frames have no copy of their own between acquires: what was written to them is adopted
// by Release.
void EngineCore::Adopt(Call& call) {
  if (window_.micro_batches() > 0) {
    return Answer(call, absl::FailedPreconditionError(
                            "AdoptParameters: a micro-batch is open; call Step first"));
  }
  for (size_t unit = 0; unit < input_.units.size(); ++unit) {
    const layout::UnitPlace& place = layout_.units()[unit];
    if (place.parameters_framed) continue;
    const auto id = static_cast<UnitId>(unit);
    for (int space = place.first_space; space < place.last_space; ++space) {
      storage_.Update(access_->Adopt(space, Copy(space)));
    }
    Adopted(id);
    Remember(id);
  }
  Answer(call, absl::OkStatus());
}

void EngineCore::AnswerAccess(const absl::Status& status) {
  // A core that is not replaced goes on, unless its communicators are broken. A record that cannot
  // be read or written is lost, which only the ranks of its communicator know so far.
  const bool extends = access_call_->kind == Call::Kind::kExtend;
  const bool broken = Broken(status);
  const bool refused = absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status);
  if (broken) Fail(status);
  if (!broken && !refused && !extends) storage_.Update(status);
  Call& call = *std::exchange(access_call_, nullptr);
  if (status.ok() && call.kind == Call::Kind::kWrite) {
    Remember(layout_.spaces()[layout_.PlaceOf(call.parameter).space].unit);
  }
  Answer(call, status);
}

// Gradients on their way to disk are the reduction thread's.
void EngineCore::AnswerQuiesceIfQuiet() {
  if (quiesce_call_ == nullptr || spilling_) return;
  if (applying_ || in_flight_ > 0 || accumulating_ > 0 || moving_ > 0) return;
  if (gradient_spill_ == nullptr || !failed_.ok()) {
    return Answer(*std::exchange(quiesce_call_, nullptr), failed_.ok() ? storage_ : failed_);
  }
  spilling_ = true;
  executor_->Post({&RunSpilled, this, 0});
}

EngineCore::Issue& EngineCore::NewIssue(int index) {
  if (free_issues_.empty()) free_issues_.push_back(&issues_.emplace_back());
  Issue& issue = *free_issues_.back();
  free_issues_.pop_back();
  issue = {.core = this, .index = index};
  return issue;
}

}  // namespace zerohold::engine
