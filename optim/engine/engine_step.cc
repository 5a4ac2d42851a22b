// The course of a step: the last reductions, the agreement and its verdict, updates and gathers,
// the answer.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <utility>

#include "optim/engine/engine_core.h"
#include "src/base/status_macros.h"

namespace zerohold::engine {

void EngineCore::BeginStep(Call& call) {
  step_call_ = &call;
  step_local_ = CheckStep();
  if (!step_local_.ok() && window_.AnyPresent()) {
    step_local_ = absl::FailedPreconditionError(absl::StrCat(
        step_local_.message(), "; the gradients of this step are gone, give them anew"));
  }
  consistency_.SetMicroBatches(window_.micro_batches());
  stall_since_ns_ = telemetry::NowNs();
  const bool final_open = window_.micro_batches() > 0 && window_.last();
  if (window_.micro_batches() > 0) CloseMicroBatch();
  if (!final_open) {
    // What is left of a partial window: its sums, or its one reduction. A rank without a
    // micro-batch takes part in the others' one.
    std::fill(reductions_issued_.begin(), reductions_issued_.end(), 0);
    const bool sums = RoundEachMicroBatch() && window_.micro_batches() > 0;
    step_.BeginRound(sums ? Round::kFlush : Round::kFinal);
  }
  step_requested_ = true;
}

// Fp32 sums under way are of units whose reduction has not started.
void EngineCore::RequestStepIfReady() {
  if (!step_requested_ || accumulating_ > 0) return;
  step_requested_ = false;
  step_.CloseRound();
  step_.Request();
}

absl::Status EngineCore::CheckStep() const {
  ZH_RETURN_IF_ERROR(window_.CheckStep());
  ZH_RETURN_IF_ERROR(CheckCopies("Step"));
  for (size_t i = 0; i < input_.units.size(); ++i) {
    if (residency_.Pinned(static_cast<UnitId>(i))) {
      return absl::FailedPreconditionError(absl::StrCat(
          "Step: unit ", input_.units[window_.FirstHolding(static_cast<UnitId>(i))].name,
          " is still acquired; its parameters will change, Release it"));
    }
  }
  return absl::OkStatus();
}

// Copies that stay are compared here, those in frames were when their unit was released.
absl::Status EngineCore::CheckCopies(const char* call) const {
  if (!incoherent_.ok()) return incoherent_;
  for (size_t i = 0; i < input_.units.size(); ++i) {
    if (layout_.units()[i].parameters_framed) continue;
    const ParameterId changed = FindChanged(static_cast<UnitId>(i));
    if (changed < 0) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(call, ": parameter ", input_.parameters[changed].name,
                     " is not what the engine left there; write under Acquire(kWrite), or call "
                     "AdoptParameters"));
  }
  return absl::OkStatus();
}

// What the sum of a step's gradients is divided by, as far as it is known. A step without a
// micro-batch is refused, but its collectives run.
float EngineCore::Divisor(int32_t space) const {
  if (input_.options.reduction == GradientReduction::kSum) return 1.0f;
  const int64_t micro_batches = std::max<int64_t>(1, window_.micro_batches());
  const int asked = layout_.spaces()[space].mean_ranks;
  const int64_t ranks = asked > 0 ? asked : layout_.MembershipIn(space).world;
  return static_cast<float>(ranks * micro_batches);
}

void EngineCore::StartOperation(int index) {
  const Operation& operation = plan_.operations[index];
  Issue& issue = NewIssue(index);
  if (OfRecord(operation)) return StartRecord(issue, operation);
  ++in_flight_;
  issue.round = std::max<int64_t>(1, window_.micro_batches()) - 1;
  issue.divisor = Divisor(operation.space);
  if (operation.verb == Verb::kReduceScatter) {
    const UnitId unit = operation.unit;
    issue.addends = Addends(operation);
    ++reductions_in_flight_[unit];
    const bool all = ++reductions_issued_[unit] == reductions_of_unit_[unit];
    if (all && gradient_frames_.ExtentOf(unit))
      gradient_frames_.Issued(unit, reductions_of_unit_[unit]);
  }
  executor_->Post({&RunCollective, &issue, 0});
}

// Once a record is lost nothing more is done to any: the step goes through the motions that its
// peers wait for, and ends on all ranks alike.
void EngineCore::StartRecord(Issue& issue, const Operation& operation) {
  ++moving_;
  const bool update = operation.verb == Verb::kUpdate;
  if (update && updating_++ == 0 && !applying_) Stall(between_updates_);
  if (!storage_.ok()) return Moved(&issue, absl::OkStatus());
  if (update) return update_stream_->Run(&RunUpdate, &issue);
  const auto fetch =
      operation.operand == Operand::kRecord ? &Records::Fetch : &Records::FetchGradient;
  const auto move = operation.verb == Verb::kFetch ? fetch : &Records::Store;
  (records_.get()->*move)(operation.target, &Moved, &issue);
}

void EngineCore::RecordDone(int index, const absl::Status& status) {
  --moving_;
  storage_.Update(status);
  if (!status.ok() && copy_reader_ != nullptr) copy_reader_->GiveUp(storage_);
  const Operation& operation = plan_.operations[index];
  if (operation.verb == Verb::kStore) records_->Release(operation.target);
  step_.OperationDone(index);
  if (operation.verb == Verb::kUpdate && --updating_ == 0 && !applying_) Stall(Stall::kUpdate);
}

// This rank's gradients of the bucket; null where it has none.
const std::byte* EngineCore::Addends(const Operation& operation) const {
  const layout::Bucket bucket = layout_.BucketAt(operation.target);
  const layout::FlatSpace& space = layout_.spaces()[bucket.space];
  const layout::UnitPlace& unit = layout_.units()[operation.unit];
  const SpaceMemory& memory = memory_->space(bucket.space);
  if (memory.full_sum.base != nullptr) {
    return accumulated_[operation.unit] ? memory.full_sum.At(bucket.range.begin, 0) : nullptr;
  }
  if (!unit.gradients_framed) {
    return window_.Begun(operation.unit) ? memory.gradient.At(bucket.range.begin, 0) : nullptr;
  }
  const auto extent = gradient_frames_.ExtentOf(operation.unit);
  if (!extent) return nullptr;
  return memory_->arenas().gradient_frames->At(*extent) + space.gradient_offset_bytes -
         unit.gradient_bytes.begin + bucket.range.begin * SizeOf(space.dtype);
}

void EngineCore::StartAgreement() {
  Stall(Stall::kReduce);
  if (!storage_.ok()) step_local_ = storage_;
  executor_->Post({&RunAgreement, this, 0});
}

// Gathers that were sent ahead, and whose result will be thrown away, read what comes now changes.
void EngineCore::TakeVerdictIfQuiet() {
  if (!agreed_ || gathering_ > 0) return;
  agreed_ = false;
  storage_.Update(spilled_);
  TakeVerdict();
}

void EngineCore::TakeVerdict() {
  Stall(Stall::kAgreement);
  const auto refuse = [this](absl::Status status) {
    // A frame may be what a trainer has written; every rank gathers anew, for all do the same.
    residency_.InvalidateAll();
    EndWithout(std::move(status));
  };
  if (!refusal_.ok()) return refuse(std::exchange(refusal_, absl::OkStatus()));
  if (!agreement_.any_reported()) {
    return refuse(absl::FailedPreconditionError(
        "Step: no rank reported a gradient; call GradReady for the units that have one"));
  }
  consistency_.Clear();
  stats_.loss_scale = loss_scaler_.scale();
  stats_.grad_norm = agreement_.grad_norm() / stats_.loss_scale;
  if (!agreement_.nonfinite()) return Apply();
  loss_scaler_.Skipped();
  if (!loss_scaler_.exhausted()) return Skip();
  executor_->Post({&RunBlame, this, 0});
}

void EngineCore::Skip() {
  stats_.skip_reason = SkipReason::kNonFiniteGradient;
  absl::Status status;
  if (loss_scaler_.exhausted()) {
    const LossScaleOptions& scale = input_.options.loss_scale;
    const std::string at =
        scale.enabled ? absl::StrCat(" at a loss scale down to ", loss_scaler_.scale()) : "";
    status = absl::FailedPreconditionError(
        absl::StrCat("Step: ", loss_scaler_.skips_in_a_row(), " steps in a row were skipped", at,
                     "; the first parameter whose gradient is not finite is ", blamed_, "; lower ",
                     scale.enabled && !scale.dynamic ? "loss_scale.initial or " : "",
                     "the learning rate, look at its inputs, or raise loss_scale.max_skips"));
  }
  EndWithout(std::move(status));
}

// No update: what was fetched for it goes unwritten.
void EngineCore::EndWithout(absl::Status status) {
  ending_ = std::move(status);
  step_.AgreementDone(false, agreement_.present());
}

void EngineCore::DropRecord(int64_t record) { records_->Release(record); }

void EngineCore::StartClosing() { executor_->Post({&RunClosing, this, 0}); }

void EngineCore::Apply() {
  const double limit = input_.options.clip_grad_norm;
  if (limit > 0.0) stats_.clip_factor = std::min(1.0, limit / (stats_.grad_norm + 1e-6));
  ++applied_steps_;
  const double factor = LearningRateFactor(input_.options.schedule, applied_steps_);
  stats_.applied = true;
  stats_.learning_rate = input_.options.groups[0].learning_rate * factor;
  update_site_->Prepare(input_.options.groups, factor, stats_.clip_factor / stats_.loss_scale);
  loss_scaler_.Applied();
  for (size_t space = 0; space < space_steps_.size(); ++space) {
    if (agreement_.present()[space]) ++space_steps_[space];
  }
  residency_.InvalidateAll();
  step_.AgreementDone(true, agreement_.present());
  if (!Overlaps()) return;
  applying_ = true;
  CloseWindow();
  AnswerStep();
}

void EngineCore::FinishStepIfDone() {
  if (step_.state() != Step::State::kFinished) return;
  if (!applying_) Stall(after_updates_);
  for (int32_t space = 0; space < std::ssize(space_steps_); ++space) {
    const UnitId unit = layout_.spaces()[space].unit;
    const bool changed = (applying_ || stats_.applied) && agreement_.present()[space] &&
                         !layout_.units()[unit].parameters_framed;
    if (changed) coherence_.Remember(space, Copy(space));
  }
  step_.Reset();
  if (!std::exchange(applying_, false)) {
    CloseWindow();
    AnswerStep();
  } else if (window_.micro_batches() > 0) {
    BeginRoundOf(window_.last());
  }
}

// What the next window begins with.
void EngineCore::CloseWindow() {
  incoherent_ = absl::OkStatus();
  loss_scale_.store(loss_scaler_.scale());
  window_.Reset();
  agreement_.norm().Clear();
  std::fill(accumulated_.begin(), accumulated_.end(), 0);
}

void EngineCore::AnswerStep() {
  stats_.step = applied_steps_;
  stats_.sent_bytes = sent_bytes_.Take();
  const io::MoverCounters moved = records_->TakeMoved();
  stats_.disk_read_bytes = moved.read_bytes;
  stats_.disk_written_bytes = moved.written_bytes;
  stats_.disk_read_busy_ns = moved.busy_read_ns;
  stats_.disk_write_busy_ns = moved.busy_write_ns;
  stats_.route_changes = residency_.route_changes();
  Call& call = *std::exchange(step_call_, nullptr);
  call.stats = std::exchange(stats_, StepStats());
  Answer(call, std::exchange(ending_, absl::OkStatus()));
}

// Counts the time since the last cause under this one.
void EngineCore::Stall(zerohold::Stall cause) {
  const int64_t now = telemetry::NowNs();
  stats_.stall_ns[static_cast<int>(cause)] += now - std::exchange(stall_since_ns_, now);
}

}  // namespace zerohold::engine
