#include "bench/stress/measure.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "bench/report.h"
#include "bench/stress/disk_replay.h"
#include "bench/stress/memory_stream.h"
#include "bench/stress/process.h"
#include "src/base/status_macros.h"

namespace zerohold::bench {
namespace {

constexpr double kNs = 1e-9;
constexpr int kMemoryRounds = 7;

// Of every step: seconds of the slowest rank, bytes of all.
struct Series {
  std::vector<double> step_s, read_busy_s, write_busy_s, disk_s, disk_read_s, disk_write_s,
      memory_s;
  std::array<std::vector<double>, static_cast<int>(Stall::kCount)> stall_s;
  double read_bytes = 0.0;
  double written_bytes = 0.0;
};

Status ReportGradients(Engine& engine, const StressModel& model, int64_t step, const Ranks& ranks) {
  ZH_RETURN_IF_ERROR(engine.BeginMicroBatch());
  for (int64_t unit = model.units - 1; unit >= 0; --unit) {
    const auto id = static_cast<UnitId>(unit);
    ZH_RETURN_IF_ERROR(engine.Acquire(id, AcquireMode::kBackward));
    AddGradient(model, {unit, step, ranks.rank(), ranks.size()}, engine.Gradient(id));
    ZH_RETURN_IF_ERROR(engine.GradReady(id));
    ZH_RETURN_IF_ERROR(engine.Release(id));
  }
  return absl::OkStatus();
}

// Of reads, updates and writes at the set rates, each one record after the other, behind the first
// reads, which come ahead: what no number of slots makes shorter. A rate that is not set takes no
// time.
double PipelineSeconds(const HeldStates& held, const StressOptions& options) {
  const auto seconds = [](int64_t bytes, double rate) {
    return rate > 0.0 ? static_cast<double>(bytes) / rate : 0.0;
  };
  double read = 0.0, updated = 0.0, written = 0.0;
  for (size_t i = 0; i < held.records.size(); ++i) {
    const RecordBytes& record = held.records[i];
    if (i >= static_cast<size_t>(held.slots)) {
      read += seconds(record.states + record.gradients, options.read_rate);
    }
    updated = std::max(updated, read) + seconds(record.states, options.update_rate);
    written =
        std::max(written, updated) + seconds(record.states + record.copies, options.write_rate);
  }
  return written;
}

class Measurement {
 public:
  Measurement(Engine& engine, const StressModel& model, const StressOptions& options, Ranks& ranks)
      : engine_(engine), model_(model), options_(options), ranks_(ranks) {}

  Status Prepare(const HeldStates& held) {
    if (!options_.on_disk()) return absl::OkStatus();
    auto replay = DiskReplay::Create(held, options_.Engine(0).offload, &ledger_);
    if (replay.ok()) replay_ = *std::move(replay);
    return ranks_.Agree(replay.status());
  }

  Status Run(const HeldStates& held) {
    pipeline_s_ = PipelineSeconds(held, options_);
    if (!options_.on_disk()) ZH_RETURN_IF_ERROR(MakeStream(held));
    ZH_RETURN_IF_ERROR(Step(/*counts=*/false));
    const double begin = NowSeconds();
    const auto more = [&] {
      const auto done = std::ssize(series_.step_s);
      if (options_.seconds == 0.0) return done < options_.steps;
      return done == 0 || ranks_.Max(NowSeconds() - begin) < options_.seconds;
    };
    while (more()) {
      ZH_RETURN_IF_ERROR(Step(/*counts=*/true));
      if (replay_ != nullptr) ZH_RETURN_IF_ERROR(ReplayDisk());
      if (stream_ != nullptr) ReplayMemory();
      PrintStep();
    }
    peak_resident_bytes_ = PeakResidentBytes();
    if (stream_ != nullptr) return absl::OkStatus();
    // Beside a disk its memory would count as the step's.
    ZH_RETURN_IF_ERROR(MakeStream(held));
    for (int i = 0; i < kMemoryRounds; ++i) ReplayMemory();
    return absl::OkStatus();
  }

  Measured SumUp() const {
    Measured measured;
    const auto steps = static_cast<double>(series_.step_s.size());
    measured.steps = std::ssize(series_.step_s);
    measured.step_s = Median(series_.step_s);
    measured.read_bytes = series_.read_bytes;
    measured.written_bytes = series_.written_bytes;
    measured.memory = {ranks_.Sum(static_cast<double>(stream_->bytes())), measured.step_s,
                       Median(series_.memory_s), Median(series_.memory_s)};
    measured.bound_s = measured.memory.bound_s;
    if (replay_ != nullptr) {
      const double disk_s = Median(series_.disk_s);
      measured.read = {series_.read_bytes / steps, Median(series_.read_busy_s), disk_s,
                       Median(series_.disk_read_s)};
      measured.write = {series_.written_bytes / steps, Median(series_.write_busy_s), disk_s,
                        Median(series_.disk_write_s)};
      measured.bound_s = std::max(measured.bound_s, disk_s);
    }
    measured.bound_s = std::max(measured.bound_s, ranks_.Max(std::max(pipeline_s_, link_s_)));
    const auto max = [this](int64_t mine) {
      return static_cast<int64_t>(ranks_.Max(static_cast<double>(mine)));
    };
    measured.peak_resident_bytes = max(peak_resident_bytes_);
    measured.staging_bytes = max(engine_.Memory().Bytes(Tier::kHost, MemoryKind::kStaging));
    for (size_t i = 0; i < measured.stall_s.size(); ++i) {
      measured.stall_s[i] = Median(series_.stall_s[i]);
    }
    return measured;
  }

 private:
  Status MakeStream(const HeldStates& held) {
    auto stream =
        MemoryStream::Create({.elems = held.elems,
                              .state_bytes = held.elem_bytes,
                              .copy_bytes = SizeOf(model_.dtype),
                              .copy_is_read = held.copy_is_read,
                              .threads = std::max(1, device::AllowedCores() / ranks_.local_size())},
                             &ledger_);
    ZH_RETURN_IF_ERROR(ranks_.Agree(stream.status()));
    stream_ = *std::move(stream);
    stream_->Run();
    return absl::OkStatus();
  }

  // Reductions, and the first window of fetches, end before the clock begins, as under a backward
  // pass that takes as long as theirs do; making gradients takes less. Their bytes count.
  Status Step(bool counts) {
    ZH_RETURN_IF_ERROR(ReportGradients(engine_, model_, ++step_, ranks_));
    ZH_RETURN_IF_ERROR(engine_.Quiesce());
    ranks_.Wait();
    const double begin = NowSeconds();
    const StatusOr<StepStats> stats = engine_.Step();
    ZH_RETURN_IF_ERROR(stats.status());
    if (options_.forward_s > 0.0) ZH_RETURN_IF_ERROR(PassForward());
    const double seconds = NowSeconds() - begin - options_.forward_s;
    if (!counts) return absl::OkStatus();
    series_.step_s.push_back(ranks_.Max(seconds));
    series_.read_busy_s.push_back(BusyS(stats->disk_read_busy_ns));
    series_.write_busy_s.push_back(BusyS(stats->disk_write_busy_ns));
    series_.read_bytes += ranks_.Sum(static_cast<double>(stats->disk_read_bytes));
    series_.written_bytes += ranks_.Sum(static_cast<double>(stats->disk_written_bytes));
    for (size_t i = 0; i < series_.stall_s.size(); ++i) {
      series_.stall_s[i].push_back(static_cast<double>(stats->stall_ns[i]) * kNs);
    }
    const int64_t gathered = stats->sent_bytes[static_cast<int>(Traffic::kAllGather)];
    if (options_.link_rate > 0.0 && gathers_behind_updates_) {
      link_s_ = std::max(link_s_, static_cast<double>(gathered) / options_.link_rate);
    }
    return absl::OkStatus();
  }

  // A pass that takes its time, and no core.
  Status PassForward() {
    const std::chrono::duration<double> each(options_.forward_s /
                                             static_cast<double>(model_.units));
    for (int64_t unit = 0; unit < model_.units; ++unit) {
      const auto id = static_cast<UnitId>(unit);
      ZH_RETURN_IF_ERROR(engine_.Acquire(id, AcquireMode::kEvaluate));
      std::this_thread::sleep_for(each);
      ZH_RETURN_IF_ERROR(engine_.Release(id));
    }
    return absl::OkStatus();
  }

  double BusyS(int64_t ns) const { return ranks_.Max(static_cast<double>(ns) * kNs); }

  Status ReplayDisk() {
    const io::MoverCounters before = replay_->counters();
    const StatusOr<double> seconds = replay_->Run(ranks_);
    ZH_RETURN_IF_ERROR(ranks_.Agree(seconds.status()));
    const io::MoverCounters after = replay_->counters();
    series_.disk_s.push_back(ranks_.Max(*seconds));
    series_.disk_read_s.push_back(BusyS(after.busy_read_ns - before.busy_read_ns));
    series_.disk_write_s.push_back(BusyS(after.busy_write_ns - before.busy_write_ns));
    return absl::OkStatus();
  }

  void ReplayMemory() {
    ranks_.Wait();
    series_.memory_s.push_back(ranks_.Max(stream_->Run()));
  }

  // Its bound is of the disk, or else of the memory, beside it, and of the set rates.
  void PrintStep() const {
    if (!options_.json) return;
    const double replayed_s = replay_ ? series_.disk_s.back() : series_.memory_s.back();
    const double bound_s = std::max(replayed_s, ranks_.Max(std::max(pipeline_s_, link_s_)));
    if (ranks_.rank() != 0) return;
    std::printf("{\"step\":%lld,\"step_s\":%.6g,\"bound_s\":%.6g}\n",
                static_cast<long long>(series_.step_s.size()), series_.step_s.back(), bound_s);
    std::fflush(stdout);
  }

  Engine& engine_;
  const StressModel& model_;
  const StressOptions& options_;
  Ranks& ranks_;
  memory::Ledger ledger_;
  std::unique_ptr<DiskReplay> replay_;
  std::unique_ptr<MemoryStream> stream_;
  int64_t step_ = 0;
  Series series_;
  int64_t peak_resident_bytes_ = 0;
  double pipeline_s_ = 0.0;
  double link_s_ = 0.0;  // at the set rate, of the gathers behind the updates
  const bool gathers_behind_updates_ = options_.ZeroStage() == 1 || options_.ZeroStage() == 2;
};

}  // namespace

StatusOr<Measured> MeasureSteps(Engine& engine, const StressModel& model,
                                const StressOptions& options, const HeldStates& held,
                                Ranks& ranks) {
  Measurement measurement(engine, model, options, ranks);
  ZH_RETURN_IF_ERROR(measurement.Prepare(held));
  ZH_RETURN_IF_ERROR(measurement.Run(held));
  return measurement.SumUp();
}

}  // namespace zerohold::bench
