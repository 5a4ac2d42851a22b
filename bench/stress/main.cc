// zh-stress: optimizer steps over states on a tier, beside what its links can do at best. Start it
// with mpirun, or without for one rank.
//
// Every check is made by each rank for itself and agreed on, so that all ranks end with the same
// exit code, and rank 0 alone says why, in one line.
#include <absl/strings/str_cat.h>
#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "bench/stress/measure.h"
#include "bench/stress/options.h"
#include "bench/stress/ranks.h"
#include "bench/stress/verify.h"
#include "src/base/status_macros.h"
#include "src/comm/throttled_communicator.h"
#include "zerohold/explain_faults.h"
#include "zerohold/mpi.h"

namespace zerohold::bench {
namespace {

// FailedPrecondition naming the first "name=value" line of `mine` that is another one in `first`'s.
Status CompareLines(const std::string& mine, const std::string& first) {
  std::istringstream my_lines(mine), first_lines(first);
  for (std::string my_line, first_line; std::getline(my_lines, my_line);) {
    std::getline(first_lines, first_line);
    if (my_line == first_line) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(my_line, ", but ", first_line, " on rank 0: give every rank the same"));
  }
  return absl::OkStatus();
}

Status CheckRanks(const Ranks& ranks) {
  if (ranks.size() <= kMostRanks) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      ranks.size(), " ranks: gradients sum exactly up to ", kMostRanks, "; start as many"));
}

Status SetFirstValues(Engine& engine, const StressModel& model) {
  for (int64_t unit = 0; unit < model.units; ++unit) {
    const auto id = static_cast<UnitId>(unit);
    ZH_RETURN_IF_ERROR(engine.Acquire(id, AcquireMode::kWrite));
    AddFirstValues(model, unit, engine.Parameter(id));
    ZH_RETURN_IF_ERROR(engine.Release(id));
  }
  return absl::OkStatus();
}

void PrintLink(const char* name, const LinkUse& use, double step_s) {
  if (use.bytes == 0.0) return;
  std::printf("%-12s %10.4g %10.4g %10.4g %10.4g %10.4g %8.3f\n", name, use.bytes * 1e-9,
              use.busy_s, use.bytes * 1e-9 / use.busy_s, use.bytes * 1e-9 / use.ceiling_s,
              use.bound_s, use.bound_s / step_s);
}

constexpr const char* kCauses[] = {"reduce", "agreement", "disk", "update", "gather"};

void PrintTable(const StressModel& model, const StressOptions& options, const Measured& measured,
                int ranks) {
  std::printf("%.4g M parameters of %s in %lld units, %s, on %d rank%s; medians of %lld steps\n",
              static_cast<double>(model.params()) * 1e-6, options.dtype.c_str(),
              static_cast<long long>(model.units), options.rule.c_str(), ranks,
              ranks == 1 ? "" : "s", static_cast<long long>(measured.steps));
  std::printf("%-12s %10s %10s %10s %10s %10s %8s\n", "a step's", "GB", "busy s", "GB/s", "ceiling",
              "bound s", "ratio");
  if (options.on_disk()) {
    PrintLink("disk read", measured.read, measured.step_s);
    PrintLink("disk write", measured.write, measured.step_s);
  }
  PrintLink("memory", measured.memory, measured.step_s);
  std::printf("stalls of rank 0, s:");
  for (size_t i = 0; i < measured.stall_s.size(); ++i) {
    std::printf(" %s %.4g", kCauses[i], measured.stall_s[i]);
  }
  std::printf("\nstep %.4g s, bound %.4g s, ratio %.3f\n", measured.step_s, measured.bound_s,
              measured.bound_s / measured.step_s);
}

// A step's, as in the table, in bytes and seconds.
nlohmann::ordered_json LinkJson(const LinkUse& use, double step_s) {
  return {{"bytes", use.bytes},
          {"busy_s", use.busy_s},
          {"bytes_per_s", use.bytes / use.busy_s},
          {"ceiling_bytes_per_s", use.bytes / use.ceiling_s},
          {"bound_s", use.bound_s},
          {"ratio", use.bound_s / step_s}};
}

void PrintJson(const StressModel& model, const StressOptions& options, const Measured& measured,
               int64_t verified_records, int ranks) {
  nlohmann::ordered_json links, stalls;
  if (options.on_disk()) {
    links["disk_read"] = LinkJson(measured.read, measured.step_s);
    links["disk_write"] = LinkJson(measured.write, measured.step_s);
  }
  links["memory"] = LinkJson(measured.memory, measured.step_s);
  for (size_t i = 0; i < measured.stall_s.size(); ++i) stalls[kCauses[i]] = measured.stall_s[i];
  const nlohmann::ordered_json line = {{"final", true},
                                       {"params", model.params()},
                                       {"ranks", ranks},
                                       {"steps", measured.steps},
                                       {"step_s", measured.step_s},
                                       {"bound_s", measured.bound_s},
                                       {"ratio", measured.bound_s / measured.step_s},
                                       {"read_bytes", measured.read_bytes},
                                       {"write_bytes", measured.written_bytes},
                                       {"peak_resident_bytes", measured.peak_resident_bytes},
                                       {"staging_bytes", measured.staging_bytes},
                                       {"verified_records", verified_records},
                                       {"links", links},
                                       {"stall_s", stalls}};
  std::printf("%s\n", line.dump().c_str());
}

// For what broke what the ranks speak through: an orderly end would wait for peers that do not
// come.
[[noreturn]] void Abandon(int rank, const Status& status) {
  std::fprintf(stderr, "zh-stress: rank %d: %s\n", rank, std::string(status.message()).c_str());
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

Status Stress(Engine& engine, const StressModel& model, const StressOptions& options,
              Ranks& ranks) {
  ZH_ASSIGN_OR_RETURN(const HeldStates held,
                      StatesOf(model, options.Engine(0), ranks.rank(), ranks.size()));
  ZH_RETURN_IF_ERROR(SetFirstValues(engine, model));
  ZH_ASSIGN_OR_RETURN(const Measured measured, MeasureSteps(engine, model, options, held, ranks));
  double verified_records = 0;
  if (options.verify) {
    ZH_RETURN_IF_ERROR(VerifyStates(engine, model, options, measured.steps + 1, ranks));
    verified_records = ranks.Sum(static_cast<double>(held.records.size()));
  }
  if (ranks.rank() != 0) return absl::OkStatus();
  if (!options.json) {
    PrintTable(model, options, measured, ranks.size());
    if (options.verify) std::printf("%.0f records verified\n", verified_records);
  } else {
    PrintJson(model, options, measured, static_cast<int64_t>(verified_records), ranks.size());
  }
  return absl::OkStatus();
}

// Gives the same status on every rank.
Status Run(int argc, char** argv, Ranks& ranks) {
  ZH_RETURN_IF_ERROR(ranks.Agree(ExplainFaults()));
  const StatusOr<StressOptions> options = ParseStressOptions(argc, argv);
  const Status agreed = ranks.Agree(options.status());
  if (!agreed.ok()) return absl::IsCancelled(options.status()) ? options.status() : agreed;
  const std::string& mine = options->agreed_text;
  ZH_RETURN_IF_ERROR(ranks.Agree(CompareLines(mine, ranks.TextOfRank0(mine))));
  ZH_RETURN_IF_ERROR(CheckRanks(ranks));

  const StressModel model(options->params, options->WeightType(), options->seed);
  ZH_ASSIGN_OR_RETURN(Communicator communicator, MpiCommunicator(MPI_COMM_WORLD));
  if (options->link_rate > 0.0 || options->link_latency_s > 0.0) {
    communicator = Communicator(comm::CreateThrottledCommunicator(
        communicator.impl(), {.rate = options->link_rate, .latency_s = options->link_latency_s}));
  }
  ZH_ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine,
                      Engine::Create(options->Engine(ranks.rank()), {std::move(communicator)},
                                     model.parameter_specs, model.unit_specs));
  const Status stressed = Stress(*engine, model, *options, ranks);
  const Status closed = engine->Close();
  return stressed.ok() ? ranks.Agree(closed) : stressed;
}

int Main(int argc, char** argv) {
  StatusOr<MpiSession> session = MpiSession::Start();
  StatusOr<Communicator> world = session.ok() ? MpiCommunicator(MPI_COMM_WORLD) : session.status();
  if (!world.ok()) {
    std::fprintf(stderr, "zh-stress: %s\n", std::string(world.status().message()).c_str());
    return 1;
  }
  Ranks ranks(*std::move(world));
  const Status status = Run(argc, argv, ranks);
  if (status.ok()) return 0;
  if (absl::IsAborted(status) || absl::IsDeadlineExceeded(status)) Abandon(ranks.rank(), status);
  if (ranks.rank() == 0) {
    const bool help = absl::IsCancelled(status);
    const std::string text(status.message());
    std::fprintf(help ? stdout : stderr, help ? "%s" : "zh-stress: %s\n", text.c_str());
  }
  return absl::IsCancelled(status) ? 0 : 1;
}

}  // namespace
}  // namespace zerohold::bench

int main(int argc, char** argv) { return zerohold::bench::Main(argc, argv); }
