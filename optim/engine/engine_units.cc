// Micro-batches and units: what the trainer acquires, releases and reports, and the frames that
// follow.
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "optim/engine/engine_core.h"
#include "src/base/check.h"
#include "src/base/hash.h"
#include "src/base/status_macros.h"

namespace zerohold::engine {

// Without a running sum there is one reduction, and the first micro-batch is the last.
void EngineCore::BeginMicroBatch(Call& call) {
  absl::Status status = CheckWeight(call.weight);
  if (status.ok()) status = CheckLimit();
  if (status.ok()) status = window_.CheckBegin();
  if (!status.ok()) return Answer(call, std::move(status));
  if (window_.micro_batches() > 0) CloseMicroBatch();
  const bool single = input_.options.max_micro_batches == 1 && !memory_plan_.sums_in_place;
  const bool last = call.last || single;
  window_.BeginMicroBatch(last);
  if (input_.options.reduction == GradientReduction::kWeightedMean) {
    ++in_flight_;
    executor_->Post({&RunShareWeight, this, std::bit_cast<int64_t>(call.weight)});
  }
  if (!applying_) BeginRoundOf(last);  // else when that step is done
  residency_.BeginPass(Pass::kTraining);
  Prefetch();
  Answer(call, absl::OkStatus());
}

// Within limits that leave their sum, the divisor, a normal number of fp32.
absl::Status EngineCore::CheckWeight(double weight) const {
  const bool weighted = input_.options.reduction == GradientReduction::kWeightedMean;
  if (!weighted && weight != 1.0) {
    return absl::InvalidArgumentError(absl::StrCat("BeginMicroBatch: weight is ", weight,
                                                   "; give 1, or set reduction to kWeightedMean"));
  }
  if (!(weight >= 0x1p-64 && weight <= 0x1p64)) {
    return absl::InvalidArgumentError(
        absl::StrCat("BeginMicroBatch: weight is ", weight, "; give 2^-64 to 2^64"));
  }
  return absl::OkStatus();
}

absl::Status EngineCore::CheckLimit() const {
  const int64_t limit = input_.options.max_micro_batches;
  if (memory_plan_.sums_in_place || window_.micro_batches() < limit) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("BeginMicroBatch: max_micro_batches is ", limit,
                   " and the step has had them; call Step first, or raise it"));
}

void EngineCore::BeginRoundOf(bool last) {
  if (!RoundEachMicroBatch() && !last) return;
  std::fill(reductions_issued_.begin(), reductions_issued_.end(), 0);
  step_.BeginRound(last ? Round::kFinal : Round::kAccumulate);
}

void EngineCore::Acquire(Call& call) {
  begins_.clear();
  gathers_.clear();
  absl::Status status = window_.CheckAcquire(call.unit, call.mode, &begins_);
  if (status.ok()) status = CheckKept(call);
  // Ranks may be refused apart here, so before they do anything; room for parameters is the same on
  // all of them.
  if (status.ok()) status = CheckGradientRoom(call.unit, begins_);
  if (status.ok()) status = AcquireParameters(call.unit, call.mode);
  if (status.ok()) AcquireGradients(begins_);
  IssueGathers();
  if (!status.ok()) return Answer(call, std::move(status));
  window_.Acquire(call.unit, call.mode);
  Prefetch();
  acquire_call_ = &call;
}

absl::Status EngineCore::CheckKept(const Call& call) const {
  const bool reads = call.mode == AcquireMode::kForward || call.mode == AcquireMode::kEvaluate;
  if (!reads || !memory_plan_.placement.drop_copies) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("Acquire of unit ", input_.units[call.unit].name,
                   ": offload.drop_parameters throws parameters away; leave it false"));
}

absl::Status EngineCore::AcquireParameters(UnitId unit, AcquireMode mode) {
  const Pass pass = mode == AcquireMode::kWrite      ? Pass::kNone
                    : mode == AcquireMode::kEvaluate ? Pass::kEvaluation
                                                     : Pass::kTraining;
  const std::span<const UnitId> touched = window_.Touched(unit);
  for (size_t i = 0; i < touched.size(); ++i) {
    const size_t known = gathers_.size();
    absl::Status status = residency_.Acquire(touched[i], pass, &gathers_);
    if (!status.ok()) {
      for (size_t j = 0; j < i; ++j) residency_.Release(touched[j]);
      return status;
    }
    if (!layout_.units()[touched[i]].parameters_framed) continue;
    if (gathers_.size() > known) {
      ++stats_.prefetch_misses;
    } else if (gathers_in_flight_[touched[i]] > 0) {
      ++stats_.prefetch_late;
    } else {
      ++stats_.prefetch_hits;
    }
  }
  return absl::OkStatus();
}

// Whether there is, or can be, room for the gradients of all these units. Changes nothing: units
// that make room by being absent are put on a list.
absl::Status EngineCore::CheckGradientRoom(UnitId unit, std::span<const UnitId> begins) {
  absent_.clear();
  if (begins.empty()) return absl::OkStatus();
  gradient_frames_.BeginTrial();
  const UnitId full = gradient_frames_.FirstThatDoesNotFit(begins);
  if (full < 0 || (RoundOpen() && RoomMayCome(unit, begins))) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "Acquire(kBackward): gradients of unit ", input_.units[full].name, " need ",
      layout_.units()[full].gradient_bytes.size(), " bytes, but max_live_gradients_bytes gives ",
      memory_plan_.frames.gradients,
      " (or device_budget does), and what holds the rest has not reported or is reduced after it; "
      "call GradReady in the reverse order of the list of units, or raise the option"));
}

// Units that are reduced before those that wait, and of which no acquire promises a report, count
// as absent when there is no room: else who waits for them would wait for ever. One that is being
// acquired now waits for its own report.
bool EngineCore::RoomMayCome(UnitId unit, std::span<const UnitId> begins) {
  for (const UnitId other : reduction_order_) {
    if (reductions_of_unit_[other] == 0) continue;
    if (step_.Ready(other)) {
      gradient_frames_.TryWithout(other);
      continue;
    }
    // What is ready behind an absent one is reduced with it, so all of that comes before the
    // answer.
    if (!absent_.empty() && gradient_frames_.FirstThatDoesNotFit(begins) < 0) return true;
    const bool awaited =
        window_.Promised(other) || std::ranges::count(window_.Touched(unit), other) > 0;
    if (awaited || !layout_.units()[other].gradients_framed) return false;
    absent_.push_back(other);
    gradient_frames_.TryWithout(other);
  }
  return gradient_frames_.FirstThatDoesNotFit(begins) < 0;
}

// As CheckGradientRoom has seen it.
void EngineCore::AcquireGradients(std::span<const UnitId> begins) {
  for (const UnitId unit : absent_) {
    window_.CountAsAbsent(unit);
    DetachGradients(unit);
    step_.UnitReady(unit);
  }
  if (!absent_.empty()) step_.Pump();
  for (const UnitId unit : begins) {
    if (!layout_.units()[unit].gradients_framed) continue;
    const bool has_room = gradient_frames_.Allocate(unit);
    ZH_CHECK(has_room, unit);
  }
}

void EngineCore::AnswerAcquireIfReady() {
  if (acquire_call_ == nullptr || accumulating_ > 0) return;
  const std::span<const UnitId> touched = window_.Touched(acquire_call_->unit);
  for (const UnitId unit : touched) {
    if (residency_.ExtentOf(unit) && gathers_in_flight_[unit] > 0) return;
    if (!step_.Applied(unit)) return;
  }
  for (const UnitId unit : begins_) {
    const bool framed = layout_.units()[unit].gradients_framed;
    if (framed ? !gradient_frames_.Quiet(unit) : reductions_in_flight_[unit] > 0) return;
  }
  for (const UnitId unit : touched) {
    if (!layout_.units()[unit].parameters_framed || parameters_attached_[unit]) continue;
    parameters_attached_[unit] = 1;
    moves_.push_back({Move::Kind::kAttachParameters, unit, *residency_.ExtentOf(unit)});
  }
  for (const UnitId unit : begins_) {
    if (layout_.units()[unit].gradients_framed) {
      gradients_attached_[unit] = 1;
      moves_.push_back({Move::Kind::kAttachGradients, unit, *gradient_frames_.ExtentOf(unit)});
    } else {
      moves_.push_back({Move::Kind::kZeroGradients, unit});
    }
  }
  Answer(*std::exchange(acquire_call_, nullptr), absl::OkStatus());
}

void EngineCore::Release(Call& call) {
  bool written = false;
  absl::Status status = window_.Release(call.unit, &written);
  if (!status.ok()) return Answer(call, std::move(status));
  ReleaseParameters(call.unit, written);
  Prefetch();
  Answer(call, absl::OkStatus());
}

void EngineCore::ReleaseParameters(UnitId unit, bool written) {
  if (written) {
    const layout::UnitPlace& place = layout_.units()[unit];
    for (int space = place.first_space; space < place.last_space; ++space) {
      storage_.Update(access_->Adopt(space, Copy(space)));
    }
    Adopted(unit);
    Remember(unit);
  }
  for (const UnitId touched : window_.Touched(unit)) {
    if (!layout_.units()[touched].parameters_framed) continue;
    residency_.Release(touched);
    if (residency_.Pinned(touched)) continue;
    parameters_attached_[touched] = 0;
    moves_.push_back({Move::Kind::kDetachParameters, touched, *residency_.ExtentOf(touched)});
    const ParameterId changed = FindChanged(touched);
    if (changed < 0) continue;
    incoherent_ = absl::FailedPreconditionError(absl::StrCat(
        "parameter ", input_.parameters[changed].name,
        " was written while its unit was acquired for reading; acquire it with kWrite"));
  }
}

void EngineCore::Report(Call& call) {
  ready_.clear();
  const bool absent = call.kind == Call::Kind::kGradAbsent;
  absl::Status status =
      absent ? window_.GradAbsent(call.unit, &ready_) : window_.GradReady(call.unit, &ready_);
  TakeGradients(ready_);
  Answer(call, std::move(status));
}

// The trainer adds to these units' gradients no more in this micro-batch.
void EngineCore::TakeGradients(std::span<const UnitId> ready) {
  for (const UnitId unit : ready) {
    DetachGradients(unit);
    if (memory_->HasFullSums(unit)) {
      Issue& issue = NewIssue(unit);
      issue.round = accumulated_[unit];
      issue.last = RoundOpen();
      const bool adds = window_.Begun(unit);
      if (adds) accumulated_[unit] = 1;
      ++accumulating_;
      update_stream_->Run(adds ? &RunAccumulate : &RunAccumulateNothing, &issue);
    } else if (RoundOpen()) {
      step_.UnitReady(unit);
    }
  }
}

void EngineCore::DetachGradients(UnitId unit) {
  if (!std::exchange(gradients_attached_[unit], 0)) return;
  moves_.push_back({Move::Kind::kDetachGradients, unit, *gradient_frames_.ExtentOf(unit)});
}

void EngineCore::CloseMicroBatch() {
  ready_.clear();
  window_.CloseMicroBatch(&ready_);
  TakeGradients(ready_);
  // What was acquired and never reported: the step is refused, but its frames go back.
  for (size_t unit = 0; unit < gradients_attached_.size(); ++unit) {
    DetachGradients(static_cast<UnitId>(unit));
  }
  if (RoundEachMicroBatch()) step_.CloseRound();
}

void EngineCore::Prefetch() {
  gathers_.clear();
  residency_.Prefetch(&gathers_);
  IssueGathers();
}

void EngineCore::IssueGathers() {
  for (const Gather& gather : gathers_) {
    Issue& issue = NewIssue(gather.unit);
    issue.frame = memory_->arenas().parameter_frames->At(gather.extent);
    ++gathers_in_flight_[gather.unit];
    ++in_flight_;
    ++gathering_;
    waiting_gathers_.push_back(&issue);
  }
  gathers_.clear();
  PostGathers();
}

// In their order, as far as this rank has updated what it gives to them.
void EngineCore::PostGathers() {
  const auto waits = [this](const Issue* issue) { return !step_.Applied(issue->index); };
  const auto first = std::ranges::find_if(waiting_gathers_, waits);
  for (auto ready = waiting_gathers_.begin(); ready != first; ++ready) {
    Issue& issue = **ready;
    if (copy_reader_ != nullptr) copy_reader_->Enqueue(issue.index, issue.frame, &issue.reading);
    gather_executor_->Post({&RunGather, &issue, 0});
  }
  waiting_gathers_.erase(waiting_gathers_.begin(), first);
}

// Where the whole of a space's compute copy is now; for a unit in frames, only while it has one.
std::byte* EngineCore::Copy(int32_t index) const {
  const layout::FlatSpace& space = layout_.spaces()[index];
  const layout::UnitPlace& unit = layout_.units()[space.unit];
  if (!unit.parameters_framed) return memory_->space(index).copy.base;
  return memory_->arenas().parameter_frames->At(*residency_.ExtentOf(space.unit)) +
         space.parameter_offset_bytes - unit.parameter_bytes.begin;
}

void EngineCore::Remember(UnitId unit) {
  const layout::UnitPlace& place = layout_.units()[unit];
  if (place.parameters_framed && !residency_.ExtentOf(unit)) return;
  for (int space = place.first_space; space < place.last_space; ++space) {
    coherence_.Remember(space, Copy(space));
  }
}

ParameterId EngineCore::FindChanged(UnitId unit) const {
  const layout::UnitPlace& place = layout_.units()[unit];
  for (int space = place.first_space; space < place.last_space; ++space) {
    const ParameterId changed = coherence_.FindChanged(space, Copy(space));
    if (changed >= 0) return changed;
  }
  return -1;
}

// What the trainer wrote must be the same on every rank that holds it.
void EngineCore::Adopted(UnitId unit) {
  const layout::UnitPlace& place = layout_.units()[unit];
  for (int space = place.first_space; space < place.last_space; ++space) {
    const layout::FlatSpace& flat = layout_.spaces()[space];
    const std::span bytes(Copy(space), flat.elems * SizeOf(flat.dtype));
    consistency_.Adopted(space, base::Hash(bytes, 0));
  }
}

}  // namespace zerohold::engine
