// The engine thread of one rank: takes the trainer's calls and the completions of what it started
// from one queue, pumps the interpreter of the step, answers.
//
// Threads: Submit from the trainer's threads, one call at a time. All else belongs to the engine
// thread; the communication thread and the update stream touch only the operands of the operation
// at hand, which the plan's order keeps apart, and hand over by the queue. Invariants:
//  1. Every operation that starts pushes exactly one completion, failed or not.
//  2. Once `failed_` is set nothing new starts, and every call gets it.
//  3. After warm-up nothing is allocated in a step.
#pragma once

#include <absl/status/status.h>

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "optim/engine/agreement.h"
#include "optim/engine/consistency.h"
#include "optim/engine/model_memory.h"
#include "optim/engine/step.h"
#include "optim/engine/step_plan.h"
#include "optim/engine/update_site.h"
#include "optim/engine/window.h"
#include "src/base/blocking_queue.h"
#include "src/comm/communicator.h"
#include "src/comm/executor.h"
#include "src/device/device.h"
#include "src/layout/layout.h"
#include "src/memory/host_buffer.h"
#include "src/memory/ledger.h"
#include "src/telemetry/counters.h"
#include "src/telemetry/trace.h"
#include "zerohold/engine.h"

namespace zerohold::engine {

// A call of the trainer; lives on its stack until it is answered.
struct Call {
  enum class Kind : uint8_t {
    kBeginMicroBatch,
    kAcquire,
    kRelease,
    kGradReady,
    kSetGroup,
    kStep,
    kRead,
    kWrite,
    kQuiesce
  };
  Kind kind;

  // Arguments, by kind.
  bool last = true;
  UnitId unit = -1;
  AcquireMode mode = AcquireMode::kForward;
  int group = 0;
  const GroupOptions* group_options = nullptr;
  ParameterId parameter = -1;
  StateKind state = StateKind::kMaster;
  int64_t begin = 0;
  std::span<float> out{};
  std::span<const float> values{};

  // What the caller's own check of the arguments says (kRead, kWrite: all ranks must hear of it),
  // then the answer.
  absl::Status status{};
  StepStats stats{};
  std::span<const UnitId> to_zero{};  // of kAcquire: gradient pages that the caller zeroes
  std::atomic<bool> answered = false;
};

class EngineCore : private StepActions {
 public:
  struct Input {
    EngineOptions options;
    std::shared_ptr<comm::Communicator> communicator;
    std::vector<ParameterSpec> parameters;
    std::vector<UnitSpec> units;
  };
  // Collective, blocking; the verdict is the same on all ranks.
  static absl::StatusOr<std::unique_ptr<EngineCore>> Create(Input input);
  ~EngineCore() override;

  // Sends the call to the engine thread and waits for its answer.
  void Submit(Call& call);
  // Ends the threads, writes the trace. Reductions of a window that no Step ended are cancelled,
  // and with them the communicator. No Submit after it. Idempotent.
  absl::Status Stop();

  const std::vector<ParameterSpec>& parameters() const { return input_.parameters; }
  const std::vector<UnitSpec>& units() const { return input_.units; }
  const layout::Layout& layout() const { return layout_; }
  const ModelMemory& memory() const { return *memory_; }
  MemoryStats MemoryInUse() const { return ledger_.Read(); }
  std::string DescribePlan() const;

 private:
  struct Event {
    enum class Kind : uint8_t { kCall, kOperationDone, kAgreementDone, kAccessDone, kStop };
    Kind kind = Kind::kStop;
    Call* call = nullptr;
    int64_t index = 0;
    absl::Status status{};
  };
  struct UpdateTask {
    EngineCore* core;
    int index;  // into the plan
  };

  EngineCore(Input input, layout::Layout layout);
  absl::Status Allocate();
  absl::Status AllocateScratch();
  void Start();

  // On the engine thread.
  void Loop();
  void Handle(Event& event);
  void HandleCall(Call& call);
  void Answer(Call& call, absl::Status status);
  void Fail(const absl::Status& status);
  void BeginMicroBatch(Call& call);
  void Acquire(Call& call);
  void Release(Call& call);
  void GradReady(Call& call);
  void SetGroup(Call& call);
  void BeginStep(Call& call);
  void ZeroUnstarted();
  void TakeVerdict();
  void Apply();
  void AnswerAccess(const absl::Status& status);
  void FinishStepIfDone();
  void AnswerQuiesceIfQuiet();
  void EndWindow(absl::Status status);
  void Stall(zerohold::Stall cause);
  uint64_t HashUnit(UnitId unit) const;
  void SetDivisor();

  // StepActions, on the engine thread.
  void StartOperation(int index) override;
  void StartAgreement() override;

  // On the communication thread.
  static void RunCollective(void* self, int64_t index);
  static void RunAgreement(void* self, int64_t);
  static void RunAccess(void* self, int64_t);
  absl::Status Collective(const Operation& operation);
  absl::Status Agree();
  absl::Status Access(Call& call);
  // On the update stream.
  static void RunUpdate(void* task);

  Input input_;
  const layout::Layout layout_;
  comm::Communicator& communicator_;
  memory::Ledger ledger_;
  telemetry::Counters<Traffic> sent_bytes_;
  telemetry::Trace trace_;
  std::unique_ptr<ModelMemory> memory_;
  memory::HostBuffer scratch_;
  StepPlan plan_;

  // Of the engine thread.
  base::BlockingQueue<Event> queue_;
  Window window_;
  Step step_;
  Agreement agreement_;
  Consistency consistency_;
  std::vector<int64_t> unit_steps_;  // updates of each unit so far
  int64_t applied_steps_ = 0;
  float divisor_ = 1.0f;
  absl::Status failed_;
  Call* step_call_ = nullptr;    // waiting for its step
  Call* access_call_ = nullptr;  // waiting for its read or write
  Call* quiesce_call_ = nullptr;
  int64_t collectives_in_flight_ = 0;
  absl::Status step_local_;  // what this rank has against the step
  absl::Status refusal_;     // what the ranks agreed against it
  StepStats stats_;
  int64_t stall_since_ns_ = 0;
  std::vector<UnitId> unit_list_;  // answers of Window

  // Of the communication thread.
  std::vector<layout::Range> shards_;
  std::vector<comm::Piece> pieces_;

  std::unique_ptr<UpdateSite> update_site_;
  std::vector<UpdateTask> update_tasks_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> update_stream_;
  std::unique_ptr<comm::Executor> executor_;
  std::thread thread_;
};

}  // namespace zerohold::engine
