// The engine thread's loop, the trainer's calls, and the step's course.
#include "optim/engine/engine_core.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "src/base/float_mode.h"
#include "src/base/hash.h"

namespace zerohold::engine {

void EngineCore::Submit(Call& call) {
  const telemetry::Span span(trace_, telemetry::Lane::kCalls,
                             call.kind == Call::Kind::kStep ? "Step" : "call");
  queue_.Push({.kind = Event::Kind::kCall, .call = &call});
  executor_->Wait([](void* context) { return static_cast<Call*>(context)->answered.load(); },
                  &call);
}

absl::Status EngineCore::Stop() {
  if (!thread_.joinable()) return absl::OkStatus();
  queue_.Push({.kind = Event::Kind::kStop});
  thread_.join();
  if (collectives_in_flight_ > 0) communicator_.Cancel();
  executor_.reset();  // what was posted ends before
  update_stream_->Synchronize();
  communicator_.SetScratch({});
  comm::CommunicatorSettings settings = communicator_.settings();
  settings.sent_bytes = nullptr;
  communicator_.Configure(settings);
  absl::Status traced = trace_.Write();
  return failed_.ok() ? traced : failed_;
}

EngineCore::~EngineCore() { Stop().IgnoreError(); }

void EngineCore::Loop() {
  const base::StandardFloatMode floats;
  while (true) {
    Event event = queue_.Pop();
    if (event.kind == Event::Kind::kStop) return;
    Handle(event);
    if (failed_.ok()) {
      step_.Pump();
      FinishStepIfDone();
    }
    AnswerQuiesceIfQuiet();
  }
}

void EngineCore::Handle(Event& event) {
  switch (event.kind) {
    case Event::Kind::kCall:
      return failed_.ok() ? HandleCall(*event.call) : Answer(*event.call, failed_);
    case Event::Kind::kAccessDone:
      return AnswerAccess(event.status);
    case Event::Kind::kOperationDone:
      if (plan_.operations[event.index].verb != Verb::kUpdate) --collectives_in_flight_;
      if (!event.status.ok()) return Fail(event.status);
      if (failed_.ok()) step_.OperationDone(static_cast<int>(event.index));
      return;
    case Event::Kind::kAgreementDone:
      return event.status.ok() ? TakeVerdict() : Fail(event.status);
    case Event::Kind::kStop:
      return;
  }
}

// For good: the ranks are no longer in step with each other.
void EngineCore::Fail(const absl::Status& status) {
  if (!failed_.ok()) return;
  failed_ = status;
  if (step_call_ != nullptr) Answer(*std::exchange(step_call_, nullptr), failed_);
}

void EngineCore::Answer(Call& call, absl::Status status) {
  call.status = std::move(status);
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
      return GradReady(call);
    case Call::Kind::kSetGroup:
      return SetGroup(call);
    case Call::Kind::kStep:
      return BeginStep(call);
    case Call::Kind::kRead:
    case Call::Kind::kWrite:
      access_call_ = &call;
      executor_->Post({&RunAccess, this, 0});
      return;
    case Call::Kind::kQuiesce:
      quiesce_call_ = &call;
      return;
  }
}

void EngineCore::BeginMicroBatch(Call& call) {
  absl::Status status = window_.BeginMicroBatch(call.last);
  if (status.ok()) SetDivisor();
  Answer(call, std::move(status));
}

// Reductions, which read it, start only in the last micro-batch or in Step: the count is final
// then, and none is written after. A step without a micro-batch is refused, so any divisor will do.
void EngineCore::SetDivisor() {
  const bool sum = input_.options.reduction == GradientReduction::kSum;
  divisor_ = sum ? 1.0f : static_cast<float>(communicator_.size() * window_.micro_batches());
}

void EngineCore::Acquire(Call& call) {
  unit_list_.clear();
  absl::Status status = window_.Acquire(call.unit, call.mode, &unit_list_);
  call.to_zero = unit_list_;
  Answer(call, std::move(status));
}

void EngineCore::Release(Call& call) {
  bool written = false;
  absl::Status status = window_.Release(call.unit, &written);
  if (status.ok() && written) consistency_.Adopted(call.unit, HashUnit(call.unit));
  Answer(call, std::move(status));
}

uint64_t EngineCore::HashUnit(UnitId unit) const {
  uint64_t hash = 0;
  const auto [first, last] = layout_.SpacesOf(unit);
  for (int space = first; space < last; ++space) {
    const std::span values(memory_->Parameters(space), layout_.spaces()[space].elems);
    hash = base::Hash(std::as_bytes(values), hash);
  }
  return hash;
}

void EngineCore::GradReady(Call& call) {
  unit_list_.clear();
  absl::Status status = window_.GradReady(call.unit, &unit_list_);
  for (const UnitId unit : unit_list_) step_.UnitReady(unit);
  Answer(call, std::move(status));
}

void EngineCore::SetGroup(Call& call) {
  const auto groups = static_cast<int>(input_.options.groups.size());
  absl::Status status;
  if (call.group < 0 || call.group >= groups) {
    status = absl::InvalidArgumentError(
        absl::StrCat("SetGroup: group ", call.group, " does not exist; there are ", groups));
  } else {
    status = call.group_options->Validate();
    if (status.ok()) input_.options.groups[call.group] = *call.group_options;
  }
  Answer(call, std::move(status));
}

void EngineCore::AnswerAccess(const absl::Status& status) {
  const bool callers_mistake =
      absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status);
  if (!status.ok() && !callers_mistake) Fail(status);
  Answer(*std::exchange(access_call_, nullptr), status);
}

void EngineCore::AnswerQuiesceIfQuiet() {
  if (quiesce_call_ == nullptr || collectives_in_flight_ > 0) return;
  Answer(*std::exchange(quiesce_call_, nullptr), failed_);
}

void EngineCore::BeginStep(Call& call) {
  step_call_ = &call;
  step_local_ = window_.CheckStep();
  consistency_.SetMicroBatches(window_.micro_batches());
  ZeroUnstarted();
  stall_since_ns_ = telemetry::NowNs();
  step_.Request();
}

// What nobody acquired for backward still holds an older gradient, and takes part as zero.
void EngineCore::ZeroUnstarted() {
  for (size_t i = 0; i < layout_.spaces().size(); ++i) {
    const layout::FlatSpace& space = layout_.spaces()[i];
    if (space.frozen || window_.Zeroed(space.unit)) continue;
    std::fill_n(memory_->Gradients(static_cast<int32_t>(i)), space.elems, 0.0f);
  }
}

void EngineCore::StartOperation(int index) {
  if (plan_.operations[index].verb == Verb::kUpdate) {
    update_stream_->Run(&RunUpdate, &update_tasks_[index]);
  } else {
    ++collectives_in_flight_;
    executor_->Post({&RunCollective, this, index});
  }
}

void EngineCore::StartAgreement() {
  Stall(Stall::kReduce);
  executor_->Post({&RunAgreement, this, 0});
}

void EngineCore::TakeVerdict() {
  Stall(Stall::kAgreement);
  const auto end = [this](absl::Status status) {
    step_.AgreementDone(false, agreement_.present());
    EndWindow(std::move(status));
  };
  if (!refusal_.ok()) return end(std::exchange(refusal_, absl::OkStatus()));
  if (!agreement_.any_present()) {
    return end(absl::FailedPreconditionError(
        "Step: no rank reported a gradient; call GradReady for the units that have one"));
  }
  consistency_.Clear();
  stats_.grad_norm = agreement_.grad_norm();
  if (agreement_.nonfinite()) {
    stats_.skip_reason = SkipReason::kNonFiniteGradient;
    return end(absl::OkStatus());
  }
  Apply();
}

void EngineCore::Apply() {
  const double limit = input_.options.clip_grad_norm;
  if (limit > 0.0) stats_.clip_factor = std::min(1.0, limit / (stats_.grad_norm + 1e-6));
  ++applied_steps_;
  const double factor = LearningRateFactor(input_.options.schedule, applied_steps_);
  stats_.applied = true;
  stats_.learning_rate = input_.options.groups[0].learning_rate * factor;
  update_site_->Prepare(input_.options.groups, factor, stats_.clip_factor);
  for (size_t unit = 0; unit < unit_steps_.size(); ++unit) {
    if (agreement_.present()[unit]) ++unit_steps_[unit];
  }
  step_.AgreementDone(true, agreement_.present());
}

void EngineCore::FinishStepIfDone() {
  if (step_call_ == nullptr) return;
  if (step_.state() != Step::State::kFinished) {
    if (step_.state() == Step::State::kApplying && step_.updates_done()) Stall(Stall::kUpdate);
    return;
  }
  Stall(layout_.config().update_world > 1 ? Stall::kGather : Stall::kUpdate);
  EndWindow(absl::OkStatus());
}

void EngineCore::EndWindow(absl::Status status) {
  stats_.step = applied_steps_;
  stats_.sent_bytes = sent_bytes_.Take();
  window_.Reset();
  step_.Reset();
  agreement_.norm().Clear();
  Call& call = *std::exchange(step_call_, nullptr);
  call.stats = std::exchange(stats_, StepStats());
  Answer(call, std::move(status));
}

// Counts the time since the last cause under this one.
void EngineCore::Stall(zerohold::Stall cause) {
  const int64_t now = telemetry::NowNs();
  stats_.stall_ns[static_cast<int>(cause)] += now - std::exchange(stall_since_ns_, now);
}

}  // namespace zerohold::engine
