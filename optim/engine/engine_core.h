// The engine thread of one rank: takes the trainer's calls and the completions of what it started
// from one queue, pumps the interpreter of the step, answers.
//
// Threads: Submit from the trainer's threads, one call at a time. All else belongs to the engine
// thread; the communication threads and the update stream touch only the operands of the operation
// at hand, which the plan's order keeps apart, and hand over by the queue. There are two channels
// of collectives, reductions (with the agreement) and gathers of parameters, neither of which waits
// for the other. Where a step goes on under the next forward pass, only calls that touch nothing of
// it go on too. Invariants:
//  1. Every operation that starts pushes exactly one completion, failed or not.
//  2. What is issued next follows from the trainer's calls and the plan, never from what is
//     finished.
//  3. Once `failed_` is set nothing new starts, and every call gets it.
//  4. After warm-up nothing is allocated in a step.
//  5. A core never changes its model: when units are added, a successor takes over its memory and
//     communicators.
#pragma once

#include <absl/status/status.h>

#include <atomic>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "optim/engine/agreement.h"
#include "optim/engine/call.h"
#include "optim/engine/coherence.h"
#include "optim/engine/consistency.h"
#include "optim/engine/copy_reader.h"
#include "optim/engine/gradient_frames.h"
#include "optim/engine/gradient_spill.h"
#include "optim/engine/loss_scaler.h"
#include "optim/engine/model_memory.h"
#include "optim/engine/records.h"
#include "optim/engine/residency.h"
#include "optim/engine/state_access.h"
#include "optim/engine/step.h"
#include "optim/engine/step_plan.h"
#include "optim/engine/update_site.h"
#include "optim/engine/window.h"
#include "src/base/blocking_queue.h"
#include "src/comm/communicator.h"
#include "src/comm/executor.h"
#include "src/device/device.h"
#include "src/layout/layout.h"
#include "src/memory/fault_reporter.h"
#include "src/memory/host_buffer.h"
#include "src/memory/ledger.h"
#include "src/telemetry/counters.h"
#include "src/telemetry/trace.h"
#include "zerohold/engine.h"

namespace zerohold::engine {

class EngineCore : private StepActions {
 public:
  class Hold;
  struct Input {
    EngineOptions options;
    // The first is of all ranks.
    std::vector<std::shared_ptr<comm::Communicator>> communicators;
    std::vector<ParameterSpec> parameters;
    std::vector<UnitSpec> units;
    // Makes what moves the bytes of record files, in tests; empty: what the options say.
    Records::MakeBackend backend{};
    // The communicators are this engine's while one of its cores has this.
    std::shared_ptr<const Hold> hold = {};
  };
  // Collective, blocking; the verdict is the same on all ranks.
  static absl::StatusOr<std::unique_ptr<EngineCore>> Create(Input input);
  // One that has the addition besides, to be put in the place of `core`, which takes calls no more.
  // Collective, blocking, between steps; the verdict is the same on all ranks. On an error `core`
  // is as it was.
  static absl::StatusOr<std::unique_ptr<EngineCore>> Extend(EngineCore& core,
                                                            const Addition& addition);
  ~EngineCore() override;

  // Sends the call to the engine thread and waits for its answer, which may name memory to be
  // moved.
  void Submit(Call& call);
  // Ends the threads, writes the trace. Reductions of a window that no Step ended are cancelled,
  // and with them the communicator. No Submit after it. Idempotent.
  absl::Status Stop();

  const std::vector<ParameterSpec>& parameters() const { return input_.parameters; }
  const std::vector<UnitSpec>& units() const { return input_.units; }
  const layout::Layout& layout() const { return layout_; }
  const ModelMemory& memory() const { return *memory_; }
  MemoryStats MemoryInUse() const { return ledger_.Read(); }
  double loss_scale() const { return loss_scale_.load(); }
  std::string DescribePlan() const;

 private:
  // An operation of the plan that a thread has been given, or a unit.
  struct Issue {
    EngineCore* core = nullptr;
    int index = 0;
    const std::byte* addends = nullptr;  // of the bucket; null: this rank takes part as zero
    std::byte* frame = nullptr;          // of the unit
    int64_t round = 0;
    float divisor = 1.0f;
    bool last = true;  // nothing comes after it in this round
    CopyReader::Reading reading{};
  };

  struct Event {
    enum class Kind : uint8_t {
      kCall,
      kOperationDone,
      kAgreementDone,
      kAccessDone,
      kGathered,      // a unit's parameters
      kWeightShared,  // of the micro-batch, with all ranks
      kAccumulated,   // a unit's gradients, into their fp32 sums
      kBlamed,        // the first parameter that is not finite
      kClosed,        // the second agreement
      kNotMoved,      // a unit's memory is not where it was to be
      kSpilled,       // gradients on their way to disk have arrived
      kStop
    };
    Kind kind = Kind::kStop;
    Call* call = nullptr;
    Issue* issue = nullptr;  // that is done
    absl::Status status{};
  };
  // What counts and records, in one core after the other.
  struct Instruments {
    Instruments(const std::string& trace_path, int rank) : trace(trace_path, rank) {}
    memory::Ledger ledger;
    telemetry::Counters<Traffic> sent_bytes;
    telemetry::Trace trace;
  };
  // `before` is whom it will succeed; null for none. It lasts until this one has taken over.
  EngineCore(Input input, layout::Layout layout, const EngineCore* before);
  // engine_create.cc
  static absl::Status TakeHold(Input& input);
  static absl::StatusOr<layout::Layout> Plan(const Input& input, std::vector<UnitId> generations);
  absl::Status Allocate(const EngineCore* before);
  absl::Status AllocateScratch();
  absl::Status PrepareGathers();
  absl::Status CreateRecords(const EngineCore* before);
  std::span<std::byte> Staging(int64_t begin, int64_t bytes) const;
  absl::Status CheckBudgets() const;
  std::vector<memory::FaultMap::Entry> FaultEntries() const;
  absl::Status StartThreads(int update_threads);
  void TakeCharge();
  std::vector<bool> FreshEachMicroBatch() const;

  // engine_extend.cc
  absl::Status CheckExtend(const Addition& addition) const;
  static void RunExtend(void* self, int64_t);
  absl::Status BuildSuccessor(const Call& call);
  void Inherit(const EngineCore& before);

  // engine_core.cc: the loop, and calls that are answered at once.
  absl::Status CarryOut(const Move& move);
  void LetGo();
  void Loop();
  void Handle(Event& event);
  void OperationDone(int index, bool added, const absl::Status& status);
  bool Overlaps() const;
  bool MayGoOn(const Call& call) const;
  bool TakeHeldCall();
  void HandleCall(Call& call);
  void Answer(Call& call, absl::Status status);
  absl::Status CheckAccess(const Call& call) const;
  void Fail(const absl::Status& status);
  void SetGroup(Call& call);
  void Adopt(Call& call);
  void AnswerAccess(const absl::Status& status);
  void AnswerQuiesceIfQuiet();
  Issue& NewIssue(int index);

  // engine_units.cc: micro-batches and units.
  void BeginMicroBatch(Call& call);
  absl::Status CheckWeight(double weight) const;
  absl::Status CheckLimit() const;
  void BeginRoundOf(bool last);
  void Acquire(Call& call);
  absl::Status CheckKept(const Call& call) const;
  absl::Status AcquireParameters(UnitId unit, AcquireMode mode);
  absl::Status CheckGradientRoom(UnitId unit, std::span<const UnitId> begins);
  bool RoomMayCome(UnitId unit, std::span<const UnitId> begins);
  void AcquireGradients(std::span<const UnitId> begins);
  void AnswerAcquireIfReady();
  void Release(Call& call);
  void ReleaseParameters(UnitId unit, bool written);
  void Report(Call& call);
  void TakeGradients(std::span<const UnitId> ready);
  void DetachGradients(UnitId unit);
  void CloseMicroBatch();
  void Prefetch();
  void IssueGathers();
  void PostGathers();
  std::byte* Copy(int32_t space) const;
  void Remember(UnitId unit);
  ParameterId FindChanged(UnitId unit) const;
  void Adopted(UnitId unit);
  bool RoundEachMicroBatch() const { return memory_plan_.sum_levels > 0; }
  bool RoundOpen() const { return RoundEachMicroBatch() || window_.last(); }

  // engine_step.cc: the course of a step.
  bool UsesDisk() const { return !input_.options.offload.nvme_paths.empty(); }
  void BeginStep(Call& call);
  absl::Status CheckStep() const;
  absl::Status CheckCopies(const char* call) const;
  void RequestStepIfReady();
  float Divisor(int32_t space) const;
  void TakeVerdictIfQuiet();
  void PostAccessIfQuiet();
  void TakeVerdict();
  void Apply();
  void Skip();
  void FinishStepIfDone();
  void EndWithout(absl::Status status);
  void CloseWindow();
  void AnswerStep();
  void Stall(zerohold::Stall cause);
  void StartOperation(int index) override;
  void StartRecord(Issue& issue, const Operation& operation);
  void RecordDone(int index, const absl::Status& status);
  void StartAgreement() override;
  void DropRecord(int64_t record) override;
  void StartClosing() override;
  const std::byte* Addends(const Operation& operation) const;

  // engine_tasks.cc. On the communication threads:
  static void RunCollective(void* issue, int64_t);
  static void RunGather(void* issue, int64_t);
  static void RunShareWeight(void* self, int64_t weight_bits);
  static void RunAgreement(void* self, int64_t);
  static void RunAccess(void* self, int64_t);
  static void RunBlame(void* self, int64_t);
  static void RunClosing(void* self, int64_t);
  static void RunSpilled(void* self, int64_t);
  absl::Status Collective(const Issue& issue);
  absl::Status ReduceScatter(const Issue& issue, const layout::Bucket& bucket);
  absl::Status AllGather(const Operation& operation, const layout::Bucket& bucket);
  absl::Status GatherUnit(Issue& issue);
  void FillHeld(int32_t space, const layout::Bucket& bucket, std::byte* to) const;
  bool CopiesMayBeAway() const;
  bool Spills(int32_t space) const;
  absl::Status Agree();
  absl::Status AgreeOver(int index, absl::Status* refused);
  absl::Status Access(Call& call);
  absl::Status Blame();
  comm::Communicator& CommunicatorOf(int32_t space) const;
  comm::Communicator& GatherCommunicatorOf(int32_t space) const;
  void CutShards(const layout::Bucket& bucket, std::vector<layout::Range>& shards) const;
  comm::Mean MeanOf(const layout::Bucket& bucket, float divisor);
  void PointSumsAt(const layout::Bucket& bucket);
  int64_t HeldIndex(const layout::Bucket& bucket, layout::Range shard) const;
  static void Moved(void* issue, absl::Status status);  // on the thread of I/O, or at once
  // On the update stream:
  static void RunUpdate(void* issue);
  static void RunAccumulate(void* issue);
  static void RunAccumulateNothing(void* issue);

  Input input_;
  const layout::Layout layout_;
  comm::Communicator& communicator_;  // the first one, of all ranks
  // For each one, its twin where units come in frames, else itself.
  std::vector<std::shared_ptr<comm::Communicator>> gather_communicators_;
  const std::shared_ptr<Instruments> instruments_;
  memory::Ledger& ledger_;
  telemetry::Counters<Traffic>& sent_bytes_;
  telemetry::Trace& trace_;
  const MemoryPlan memory_plan_;
  std::unique_ptr<ModelMemory> memory_;
  std::unique_ptr<StateAccess> access_;
  std::unique_ptr<memory::FaultMap> fault_map_;
  memory::HostBuffer scratch_;
  StepPlan plan_;
  std::vector<UnitId> reduction_order_;
  std::vector<int64_t> reductions_of_unit_;
  // What a step waits for while no record is updated, and when all are.
  zerohold::Stall between_updates_ = Stall::kUpdate;
  zerohold::Stall after_updates_ = Stall::kUpdate;

  // Of the engine thread.
  base::BlockingQueue<Event> queue_;
  Window window_;
  Residency residency_;
  GradientFrames gradient_frames_;
  Coherence coherence_;
  Step step_;
  Agreement agreement_;
  Consistency consistency_;
  LossScaler loss_scaler_;
  std::atomic<double> loss_scale_;
  std::vector<int64_t> space_steps_;  // updates of each flat space so far
  int64_t applied_steps_ = 0;
  absl::Status failed_;
  Call* step_call_ = nullptr;     // waiting for its step
  Call* access_call_ = nullptr;   // waiting for its read or write
  Call* acquire_call_ = nullptr;  // waiting for gathers and for room
  Call* quiesce_call_ = nullptr;
  bool spilling_ = false;      // it waits for gradients to arrive on disk
  Call* held_call_ = nullptr;  // see MayGoOn
  bool applying_ = false;      // a step that was answered goes on
  bool stopping_ = false;
  bool agreed_ = false;       // the verdict waits for gathers that read what it may change
  bool access_due_ = false;   // so does the access call
  int64_t in_flight_ = 0;     // collectives, but for agreement, blame, closing and access
  int64_t gathering_ = 0;     // those of them that gather units
  int64_t accumulating_ = 0;  // units
  int64_t moving_ = 0;        // records, from or to disk
  int64_t updating_ = 0;      // records
  bool step_requested_ = false;
  absl::Status step_local_;  // what this rank has against the step
  absl::Status incoherent_;  // a copy was found changed at a Release
  absl::Status storage_;     // why a record is lost: all ranks hear of it in the next agreement
  absl::Status refusal_;     // what the ranks agreed against it
  absl::Status ending_;      // what it will be answered
  StepStats stats_;
  int64_t stall_since_ns_ = 0;
  std::vector<UnitId> begins_;  // of the acquire at hand
  std::vector<UnitId> ready_;
  std::vector<UnitId> absent_;  // see CheckGradientRoom
  std::vector<Gather> gathers_;
  std::vector<Issue*> waiting_gathers_;  // in order, from the first whose unit is not updated
  std::vector<Move> moves_;              // of the answer at hand
  std::vector<uint8_t> parameters_attached_;
  std::vector<uint8_t> gradients_attached_;
  std::vector<int64_t> gathers_in_flight_;     // of each unit
  std::vector<int64_t> reductions_issued_;     // of each unit, in this round
  std::vector<int64_t> reductions_in_flight_;  // of each unit
  std::vector<uint8_t> accumulated_;  // units whose fp32 sums hold something of this window
  std::deque<Issue> issues_;          // addresses stay
  std::vector<Issue*> free_issues_;

  // Of the reduction channel; the engine thread writes them only when it has nothing in flight
  // there.
  struct Weights {
    std::vector<float> of_ranks;  // of the micro-batch at hand
    double sum = 0.0;             // of all of the step
  };
  std::vector<Weights> weights_;  // by communicator
  std::vector<layout::Range> shards_;
  std::vector<comm::Piece> pieces_;
  std::vector<float*> levels_;
  std::string blamed_;  // the first parameter that is not finite
  // Of the gather channel.
  std::vector<layout::Range> gather_shards_;
  std::vector<comm::Piece> gather_pieces_;

  absl::Status spilled_;  // of gradients that the agreement's thread found lost

  std::unique_ptr<Records> records_;               // ends before the queue that its I/O tells
  std::unique_ptr<GradientSpill> gradient_spill_;  // null: no gradients go to disk
  std::unique_ptr<UpdateSite> update_site_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<CopyReader> copy_reader_;  // null: no parameters come from disk
  std::unique_ptr<device::Stream> update_stream_;
  std::unique_ptr<comm::Executor> executor_;
  std::unique_ptr<comm::Executor> own_gather_executor_;
  comm::Executor* gather_executor_ = nullptr;
  std::thread thread_;

  std::unique_ptr<EngineCore> successor_;  // from the end of BuildSuccessor until Extend has it
  bool in_charge_ = false;  // communicators and trace are this core's to use and to end
};

}  // namespace zerohold::engine
