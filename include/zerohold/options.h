// Everything that Engine::Create can be told. Ranks must agree on every field that changes the
// result or the order of collectives; Create compares them and names the first difference.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "zerohold/export.h"
#include "zerohold/schedule.h"
#include "zerohold/status.h"

namespace zerohold {

// The element-wise update rules. g is the gradient after mean, unscaling and clipping; t the
// parameter's own step count. Each reads the settings of GroupOptions named in brackets; another
// one that is not at its default is refused.
//   kAdamW    [beta1, beta2, epsilon, weight_decay] decouples the decay (1711.05101):
//             p <- p (1 - lr wd) - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
//   kAdam     [the same] adds the decay to the gradient, g <- g + wd p (1412.6980 with L2);
//             then the same step
//   kSgd      [momentum, nesterov, weight_decay] g <- g + wd p; m <- momentum m + g (m = g at
//             t = 1); p <- p - lr m, or with nesterov p <- p - lr (g + momentum m)
//   kLion     [beta1, beta2, weight_decay] p <- p (1 - lr wd) - lr sign(beta1 m + (1 - beta1) g);
//             m <- beta2 m + (1 - beta2) g (2302.06675)
//   kAdagrad  [epsilon, weight_decay] g <- g + wd p; v <- v + g g;
//             p <- p - lr g / (sqrt(v) + epsilon)
enum class UpdateRule : uint8_t { kAdamW, kAdam, kSgd, kLion, kAdagrad };

// How the fp32 master of a 16-bit parameter is held. kRemainder keeps the bf16 compute copy and the
// 16 bits that it lacks: the master exactly, in 2 bytes less a parameter. In this form exact ties
// round away from zero in the copy, so the two forms may differ in their last bits. bf16
// only: refused beside fp16, and it means nothing to fp32 parameters, which are masters themselves.
enum class MasterForm : uint8_t { kFloat32, kRemainder };

// The instruction sets of the CPU loops: x86-64 baseline, AVX2 (v3), AVX-512 (v4). All give the
// same bits; kBest takes the widest that the machine has.
enum class InstructionSet : uint8_t { kBest, kBaseline, kV3, kV4 };

// What the gradient of a step is: the mean over ranks and micro-batches, or their sum.
// kWeightedMean multiplies each gradient by the weight that BeginMicroBatch was given (so the
// trainer gives the mean over a micro-batch, not its sum), divides by the sum of the weights over
// ranks and micro-batches, and keeps the result in fp32.
enum class GradientReduction : uint8_t { kMean, kSum, kWeightedMean };

// Hyper-parameters of one group. A value replaces the default, zero too.
struct GroupOptions {
  double learning_rate = 1e-3;  // >= 0, finite
  double beta1 = 0.9;           // in [0, 1)
  double beta2 = 0.999;         // in [0, 1)
  double epsilon = 1e-8;        // >= 2^-126, finite in fp32
  double weight_decay = 0.0;    // >= 0, finite
  double momentum = 0.0;        // in [0, 1); kSgd alone
  bool nesterov = false;        // with momentum > 0; kSgd alone

  // InvalidArgument naming the field, its value and the legal range: out of range, or not at its
  // default although `rule` does not read it. Create and SetGroup call it.
  ZH_EXPORT Status Validate(UpdateRule rule) const;
};

// The factor that a trainer multiplies its fp16 loss by, so that small gradients do not vanish. A
// step whose gradients are not finite is skipped, on all ranks together.
struct LossScaleOptions {
  bool enabled = false;
  bool dynamic = true;       // false: `initial` for ever
  double initial = 65536.0;  // positive, normal and finite in fp32; dynamic: from floor to cap
  double growth = 2.0;       // > 1, finite
  double backoff = 0.5;      // in (0, 1)
  int64_t growth_interval = 2000;  // applied steps in a row before it grows; >= 1
  int64_t hysteresis = 1;          // skips, since it last grew or shrank, before it shrinks; >= 1
  double floor = 1.0;              // it never shrinks below; as initial, and at most cap
  double cap = 0x1p127;            // it never grows above; as initial
  // Skips in a row, with a scale or without, after which Step fails with FailedPrecondition, naming
  // the first parameter whose gradient is not finite; 0 never does. >= 0
  int64_t max_skips = 100;

  ZH_EXPORT Status Validate() const;
};

// How files are read and written. All give the same bytes.
enum class IoEngine : uint8_t { kBest, kUring, kThreads };

// How much of something may be somewhere, on this rank: bytes, and a fraction of all there is of
// it. A whole number is bytes.
struct Budget {
  constexpr Budget(int64_t bytes = 0, double fraction = 0.0)  // NOLINT: as said
      : bytes(bytes), fraction(fraction) {}
  template <std::floating_point T>
  Budget(T fraction) = delete;  // give Fraction(it)
  static constexpr Budget All() { return Fraction(1.0); }
  static constexpr Budget Fraction(double fraction) { return {0, fraction}; }
  friend bool operator==(const Budget&, const Budget&) = default;

  // Of `all_bytes`, at most all of them.
  constexpr int64_t Of(int64_t all_bytes) const {
    if (fraction >= 1.0) return all_bytes;
    const auto part = static_cast<int64_t>(fraction * static_cast<double>(all_bytes));
    return bytes >= all_bytes - part ? all_bytes : bytes + part;
  }

  int64_t bytes;    // >= 0
  double fraction;  // 0 to 1
};

// What one tier may hold, each by itself. A fraction is of what there is at Create or Move: units
// that come later move nothing.
struct TierBudgets {
  Budget states;      // of the optimizer, with the masters
  Budget parameters;  // this rank's shards (stage 3; what is not frozen, in units in frames)
  Budget gradients;   // its reduced ones (stages 2 and 3, without running sums, which stay)
};

// Where states, shards of parameters and reduced gradients rest: in host memory, or in files on
// local disks, from where a step brings them record by record into pinned staging and back.
struct OffloadOptions {
  // Folders on local disks for what host memory is not to hold; records are spread over them, in
  // proportion to what their disks write and read in a second, which Create measures for at most
  // 0.2 s a disk where there are several. Folders of one file system count as one disk and share
  // its rate alike. The result never depends on it, but the room that a folder needs does. Files
  // have no name: nothing is left behind, and two jobs may share a folder. May differ over ranks,
  // but all ranks give some, or none. None: everything is in host memory, and the rest of this
  // means nothing, budgets of parameters and gradients refused.
  std::vector<std::string> nvme_paths;
  // Host memory takes the first records' states, and of parameters and gradients the first units',
  // what is of one dtype and communicator in a unit always whole. Parameters on disk are read again
  // for each gather, gradients written and read once a step. All: none ever goes to disk, nor may
  // those of units that come later.
  TierBudgets host = {0, Budget::All(), Budget::All()};
  // The most that the folders take together, for headers and padding not counted. Where the two
  // tiers do not hold all, Create answers ResourceExhausted.
  TierBudgets nvme = {Budget::All(), Budget::All(), Budget::All()};
  // For benches of storage alone: parameters beyond host.parameters are thrown away instead of
  // written, and units can be acquired for kBackward and kWrite alone, where their values mean
  // nothing. 16-bit types with an fp32 master. Set at Create, not by Move, and host.parameters with
  // it.
  bool drop_parameters = false;
  // Records under way at a time, read, updated or written; each takes a slot of staging: a page and
  // record_elems elements of all states, of gradients and parameters too where those may rest on
  // disk. More hides longer latencies; 1 reads, updates and writes one after the other. 0 takes as
  // many as 44 MiB hold, from 3 to 16. 0 to 4096
  int window = 0;
  // Fail where staging memory cannot be locked; else that is said once.
  bool require_pinned = false;
  IoEngine io_engine = IoEngine::kBest;
  // For tests and benches: faults of the disk, "eio=0.01,short=0.2,seed=7" (zh-stress --help lists
  // the kinds); rates of reads, of writes and of updates, in bytes of records a second, 1 or more,
  // or 0 for their own; seconds that each transfer takes besides, 0 to 3600, which those in flight
  // share. They wait, and burn no core.
  std::string faults;
  double read_rate = 0.0;
  double write_rate = 0.0;
  double update_rate = 0.0;
  double transfer_latency_s = 0.0;

  // InvalidArgument naming the field, its value and the legal range.
  ZH_EXPORT Status Validate() const;
};

struct EngineOptions {
  // 0 replicates everything. 1 shards the optimizer states over the ranks: 1/N of that memory and
  // of the update on each, for the same bytes on the wire. 2 shards gradients too: each bucket is
  // reduced as its unit reports, and the unit's gradient memory is used again. 3 shards parameters
  // too: a unit is gathered when it is acquired; half as many bytes more on the wire.
  int zero_stage = 1;
  UpdateRule rule = UpdateRule::kAdamW;
  // ParameterSpec::group is an index into it.
  std::vector<GroupOptions> groups = std::vector<GroupOptions>(1);
  ScheduleOptions schedule;  // the same for all groups; multiplies their learning rates
  GradientReduction reduction = GradientReduction::kMean;

  MasterForm master = MasterForm::kFloat32;  // of 16-bit parameters
  LossScaleOptions loss_scale;

  // The most micro-batches of one step, >= 1. More than 1 keeps a running fp32 sum of gradients: 4
  // bytes a parameter at stages 0 and 1 (none in fp32, where the gradient is the sum), 4/N instead
  // of the shard's 2/N at 2 and 3.
  int64_t max_micro_batches = 1;
  // Micro-batch i of a step belongs to rank i mod world: each is reduced by itself and the rounds
  // are added in the same tree, so that any power-of-two world gives the same bits for the same
  // global batch. Costs a reduction per micro-batch and 4/N bytes a parameter for every doubling of
  // max_micro_batches.
  bool reproducible = false;

  // Stage 3: bytes of gathered parameters on this rank at one time; stages 2 and 3: bytes of
  // gradients not yet reduced. At least the largest unit in 2 MiB pages, in one piece wherever
  // those lie that it uses (of gradients those too that wait for earlier units); Create names it,
  // and it is enough for one unit after another, in reverse order for gradients. 0 takes room for
  // one more. More lets more gathers and reductions run ahead, up to twice what all units take.
  // Stage 3, where some ranks report a unit that others leave out: the others say so (GradAbsent),
  // or this is room for the gradients of all units; else who has none left waits for the others'
  // part in a reduction while they wait for it to acquire what comes next, until
  // communication_timeout_s ends both.
  int64_t max_live_parameters_bytes = 0;
  int64_t max_live_gradients_bytes = 0;
  // The most memory of the device (on a CPU the host's) that parameters and gradients may take
  // where the trainer sees them: those that stay, and the frames of those that come and go; a
  // fraction is of what all would take if they stayed, later units too. Where it is not all, frames
  // of which nothing is said above take what it leaves, up to all units, and never shrink. Less
  // than the least (with tied units as above) is ResourceExhausted.
  Budget device_budget = Budget::All();
  // Stage 3: units of fewer elements stay gathered.
  int64_t persistence_threshold_elems = 0;

  OffloadOptions offload;

  // Step returns as soon as the ranks have agreed on it; updates and gathers go on under the next
  // forward pass, in its order, and Acquire waits for its unit. SetGroup, the first BeginMicroBatch
  // (but with kWeightedMean) and the Release of a unit that is not written do not wait. The first
  // kBackward acquire, or any other call, waits for all of them. No bit changes. A disk that fails
  // meanwhile ends the next Step (an Acquire before it, where parameters are on disk), or is told
  // by Close. Without MPI_THREAD_MULTIPLE, Step waits as before.
  bool overlap_next_forward = false;

  // Global 2-norm above which gradients are scaled down, by limit / (norm + 1e-6). 0 is off.
  double clip_grad_norm = 0.0;

  // Elements that one collective moves. Larger buckets: fewer messages, less overlap, and more
  // staging (two buckets a rank). Rounded up to a multiple of 256; the result never depends on it.
  int64_t bucket_elems = int64_t{1} << 20;
  // Elements of one optimizer record, the piece that an update and a transfer handle at a time.
  // Rounded up to a multiple of 256; the result never depends on it.
  int64_t record_elems = int64_t{256} << 10;

  // Threads of the update on this rank; 0 takes the cores that the affinity mask gives this
  // process, divided by the ranks that share them. OMP_NUM_THREADS is not read.
  int update_threads = 0;
  InstructionSet instruction_set = InstructionSet::kBest;

  // A wait in a collective that lasts longer ends with DeadlineExceeded naming the operation and
  // the ranks that have not come; a transfer of a disk after half of it with Unavailable, naming
  // record, folder and offset. Seconds, > 0.
  double communication_timeout_s = 600.0;
  // Compares every collective's name over the ranks before it runs: one small message more for
  // each. By default on where the trainer that includes this header is built without NDEBUG; ranks
  // must agree on it.
#ifdef NDEBUG
  bool check_collective_order = false;
#else
  bool check_collective_order = true;
#endif

  // A Chrome trace of this rank is written here at Close; Create refuses what cannot be written. ""
  // for none. May differ over ranks.
  std::string trace_path;
  // Gets each thing that is said once (a fallback taken, a doubtful environment); one line, no
  // newline. Called on any thread. Empty: standard error. May differ over ranks.
  std::function<void(const std::string&)> notice;

  // InvalidArgument naming the field, its value and the legal range; Unimplemented for what this
  // version has not got. Create calls it.
  ZH_EXPORT Status Validate() const;
};

}  // namespace zerohold
