// zh-train: trains a small GPT on the bytes of text, through the engine or, as the reference,
// through torch alone. Start it with mpirun, or without for one rank.
//
// Every check is made by each rank for itself and agreed on, so that all ranks end with the same
// exit code, and rank 0 alone says why, in one line.
#include <mpi.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>

#include "mpi-launch/blas.h"
#include "mpi-launch/train/corpus.h"
#include "mpi-launch/train/flag_names.h"
#include "mpi-launch/train/log.h"
#include "mpi-launch/train/model.h"
#include "mpi-launch/train/options.h"
#include "mpi-launch/train/progress.h"
#include "mpi-launch/train/trainer.h"
#include "zerohold/explain_faults.h"
#include "zerohold/mpi.h"

namespace zerohold::train {
namespace {

// The text that rank 0 has.
std::string TextOfRank0(std::string text) {
  unsigned long long bytes = text.size();
  MPI_Bcast(&bytes, 1, MPI_UNSIGNED_LONG_LONG, 0, MPI_COMM_WORLD);
  text.resize(bytes);
  MPI_Bcast(text.data(), static_cast<int>(bytes), MPI_CHAR, 0, MPI_COMM_WORLD);
  return text;
}

StatusOr<Corpus> ReadCorpus(const Options& options) {
  StatusOr<Corpus> corpus = Corpus::Read(options.data);
  if (!corpus.ok()) return corpus;
  const auto bytes = static_cast<int64_t>(corpus->bytes().size());
  if (bytes > options.context) return corpus;
  return absl::InvalidArgumentError(
      "--data holds " + std::to_string(bytes) + " bytes, and one sample of --context " +
      std::to_string(options.context) + " takes " + std::to_string(options.context + 1) +
      ": give more text or a shorter context");
}

int64_t StateBytes(const MemoryStats& memory, Tier tier) {
  return memory.Bytes(tier, MemoryKind::kMaster) + memory.Bytes(tier, MemoryKind::kMoment1) +
         memory.Bytes(tier, MemoryKind::kMoment2);
}

// "states, parameters in files in A, B, with 1048576 bytes of states in host memory", of this rank.
std::string WhatIsOnDisk(const Options& options, const MemoryStats& memory) {
  const std::pair<const char*, int64_t> kinds[] = {
      {"states", StateBytes(memory, Tier::kNvme)},
      {"parameters", memory.Bytes(Tier::kNvme, MemoryKind::kParameters)},
      {"gradients", memory.Bytes(Tier::kNvme, MemoryKind::kGradients)}};
  std::string text;
  for (const auto& [kind, bytes] : kinds) {
    if (bytes > 0) text += (text.empty() ? "" : ", ") + std::string(kind);
  }
  if (text.empty())
    return "nothing, all that may rest there fits into host memory or stays gathered";
  text += " in files in ";
  for (const std::string& path : options.nvme_paths) {
    text += (&path == options.nvme_paths.data() ? "" : ", ") + path;
  }
  const int64_t host_bytes = StateBytes(memory, Tier::kHost);
  if (options.offload != "nvme" || host_bytes == 0) return text;
  return text + ", with " + std::to_string(host_bytes) + " bytes of states in host memory";
}

void Introduce(const Job& job, const Trainer& trainer) {
  const Options& o = job.options;
  const int64_t samples = o.micro_batch * o.accumulate * job.world;
  std::printf(
      "zh-train: %d rank%s, optimizer %s, %.2f M parameters of %s, computed in %s, in %zu units\n"
      "a step is %lld sample%s of %lld bytes\n"
      "text: %lld file%s, %zu bytes, unigram entropy %.4f nats a byte\n",
      job.world, job.world == 1 ? "" : "s", o.optimizer.c_str(),
      static_cast<double>(job.model.elems()) / 1e6, o.dtype.c_str(),
      job.model.compute_type() == torch::kFloat32 ? "fp32" : "bf16", job.model.units().size(),
      static_cast<long long>(samples), samples == 1 ? "" : "s", static_cast<long long>(o.context),
      static_cast<long long>(job.corpus.files()), job.corpus.files() == 1 ? "" : "s",
      job.corpus.bytes().size(), job.corpus.UnigramEntropy());
  if (o.UsesDisk()) std::printf("on disk: %s\n", WhatIsOnDisk(o, trainer.Memory()).c_str());
  const std::string hint = launch::ProbeBlas().hint;
  if (!hint.empty()) std::printf("slow: %s\n", hint.c_str());
  std::fflush(stdout);
}

// For what struck this rank alone, or broke what the ranks speak through: an orderly end would wait
// for peers that do not come, so the reason is told first and nothing is cleaned up.
[[noreturn]] void Abandon(int rank, const std::string& when, const std::string& reason) {
  // Torch adds where it was thrown.
  const std::string line = InFlags(reason.substr(0, reason.find('\n')));
  std::fprintf(stderr, "zh-train: rank %d, %s: %s\n", rank, when.c_str(), line.c_str());
  MPI_Abort(MPI_COMM_WORLD, 1);
  std::abort();
}

// True if peers may be gone.
bool IsBroken(const Status& status) {
  return absl::IsAborted(status) || absl::IsDeadlineExceeded(status);
}

StatusOr<StepReport> StepAndEvaluate(const Options& options, Trainer& trainer, int64_t step) {
  StatusOr<StepReport> report = trainer.Step(step);
  if (!report.ok() || options.evaluate_every == 0) return report;
  if (step % options.evaluate_every != 0) return report;
  const StatusOr<double> loss = trainer.Evaluate();
  if (!loss.ok()) return loss.status();
  report->evaluation_loss = *loss;
  return report;
}

StatusOr<StepReport> StepOrAbandon(const Job& job, Trainer& trainer, int64_t step) {
  const std::string when = "step " + std::to_string(step);
  try {
    StatusOr<StepReport> report = StepAndEvaluate(job.options, trainer, step);
    if (!IsBroken(report.status())) return report;
    Abandon(job.rank, when, std::string(report.status().message()));
  } catch (const std::exception& error) {
    Abandon(job.rank, when, error.what());
  }
}

void Conclude(const Job& job, const RunReport& run) {
  const std::string skips =
      run.skipped == 0 ? "" : " (" + std::to_string(run.skipped) + " of them skipped)";
  std::printf("loss %.4f after %lld step%s%s (unigram entropy %.4f), parameters_hash %s\n",
              run.loss, static_cast<long long>(run.steps), run.steps == 1 ? "" : "s", skips.c_str(),
              job.corpus.UnigramEntropy(), run.parameters_hash.c_str());
}

Status Train(const Job& job, Trainer& trainer, Log& log) {
  using Clock = std::chrono::steady_clock;
  const Options& o = job.options;
  const bool speaks = job.rank == 0;
  Progress progress(o.steps);
  const double tokens = static_cast<double>(o.micro_batch * o.accumulate * o.context * job.world);
  RunReport run;
  run.steps = o.steps;
  for (int64_t step = 1; step <= o.steps; ++step) {
    const Clock::time_point start = Clock::now();
    const StatusOr<StepReport> report = StepOrAbandon(job, trainer, step);
    if (!report.ok()) return report.status();
    run.loss = report->loss;
    run.skipped += report->applied ? 0 : 1;
    if (!speaks) continue;
    const double tokens_per_s =
        tokens / std::chrono::duration<double>(Clock::now() - start).count();
    log.AddStep(step, *report, tokens_per_s);
    progress.Show(step, *report, tokens_per_s);
  }
  const StatusOr<std::string> hash = trainer.ParametersHash();
  if (!hash.ok()) return hash.status();
  run.parameters_hash = *hash;
  if (speaks) {
    log.AddFinal(run);
    Conclude(job, run);
  }
  return absl::OkStatus();
}

// The trace is written at the end: what cannot be written is told at the start.
Status CheckTrace(const std::string& path) {
  if (path.empty() || std::ofstream(path, std::ios::app)) return absl::OkStatus();
  return absl::InvalidArgumentError("--trace " + path + " cannot be written (" +
                                    std::strerror(errno) + "): give a file in a folder that can");
}

// Gives the same status on every rank.
Status Run(int argc, char** argv, Communicator& world) {
  if (Status s = world.Agree(ExplainFaults()); !s.ok()) return s;
  const StatusOr<Options> options = ParseOptions(argc, argv);
  if (Status s = world.Agree(options.status()); !s.ok()) {
    return absl::IsCancelled(options.status()) ? options.status() : s;  // the help as it is
  }
  const std::string& mine = options->agreed_text;
  if (Status s = world.Agree(CompareLines(mine, TextOfRank0(mine))); !s.ok()) return s;

  const StatusOr<Corpus> corpus = ReadCorpus(*options);
  if (Status s = world.Agree(corpus.status()); !s.ok()) return s;
  const std::string data = "data=" + std::to_string(corpus->bytes().size()) + " bytes of hash " +
                           std::to_string(corpus->Hash());
  if (Status s = world.Agree(CompareLines(data, TextOfRank0(data))); !s.ok()) return s;

  if (Status s = world.Agree(CheckTrace(options->TracePath(world.rank()))); !s.ok()) return s;
  Log log;
  const Status opened = world.rank() == 0 ? log.Open(options->log) : absl::OkStatus();
  if (Status s = world.Agree(opened); !s.ok()) return s;

  SetComputeThreads(options->compute_threads);
  const Model model(*options);
  const Job job{*options, *corpus, model, world.rank(), world.size()};
  StatusOr<std::unique_ptr<Trainer>> trainer =
      options->optimizer == "torch" ? MakeTorchTrainer(job) : MakeZeroHoldTrainer(job, world);
  if (!trainer.ok()) return trainer.status();
  if (world.rank() == 0) Introduce(job, **trainer);
  if (Status s = Train(job, **trainer, log); !s.ok()) return s;
  Status closed = (*trainer)->Close();
  trainer->reset();  // the engine has the communicator no more
  if (const Status s = log.Close(); closed.ok()) closed = s;
  return world.Agree(closed);
}

Status RunOrAbandon(int argc, char** argv, Communicator& world) {
  try {
    const Status status = Run(argc, argv, world);
    if (!IsBroken(status)) return status;
    Abandon(world.rank(), "outside steps", std::string(status.message()));
  } catch (const std::exception& error) {
    Abandon(world.rank(), "outside steps", error.what());
  }
}

int Main(int argc, char** argv) {
  StatusOr<MpiSession> session = MpiSession::Start();
  StatusOr<Communicator> world = session.ok() ? MpiCommunicator(MPI_COMM_WORLD) : session.status();
  if (!world.ok()) {
    std::fprintf(stderr, "zh-train: %s\n", std::string(world.status().message()).c_str());
    return 1;
  }
  const Status status = RunOrAbandon(argc, argv, *world);
  if (status.ok()) return 0;
  if (world->rank() == 0) {
    const bool help = absl::IsCancelled(status);
    const std::string text =
        help ? std::string(status.message()) : InFlags(std::string(status.message()));
    std::fprintf(help ? stdout : stderr, help ? "%s" : "zh-train: %s\n", text.c_str());
  }
  return absl::IsCancelled(status) ? 0 : 1;
}

}  // namespace
}  // namespace zerohold::train

int main(int argc, char** argv) { return zerohold::train::Main(argc, argv); }
