// zh-info: what this build of ZeroHold has, what this machine gives, and a hint for each thing that
// will hurt. Under mpirun rank 0 speaks for its machine.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "mpi-launch/blas.h"
#include "mpi-launch/info/facts.h"
#include "zerohold/info.h"
#include "zerohold/mpi.h"

namespace zerohold::info {
namespace {

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::vector<Fact> BuildFacts() {
  const BuildInfo build = GetBuildInfo();
  return {{"version", build.version, ""},
          {"devices", Joined(build.devices), ""},
          {"communicators", Joined(build.communicators), ""},
          {"zh-train", ZH_WITH_TORCH ? "built" : "not built",
           ZH_WITH_TORCH ? "" : "it needs libtorch: apt-get install libtorch-dev, configure again"},
          {"instruction set", build.best_instruction_set + " of " + Joined(build.instruction_sets),
           build.best_instruction_set == "baseline"
               ? "updates are slower: this CPU (or its virtual machine) shows no AVX2"
               : ""}};
}

Fact Mpi(const Communicator& world) {
  Fact fact{"MPI", MpiDescription(), ""};
  const bool multiple = fact.value.find("MPI_THREAD_MULTIPLE") != std::string::npos;
  fact.value += ", a world of " + std::to_string(world.size()) + ", " +
                std::to_string(world.local_size()) + " here";
  if (!multiple) {
    fact.hint =
        "collectives do not overlap with compute: use an MPI built with MPI_THREAD_MULTIPLE";
  } else if (geteuid() == 0 && std::getenv("OMPI_ALLOW_RUN_AS_ROOT") == nullptr) {
    fact.hint =
        "mpirun refuses root: export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1";
  }
  return fact;
}

std::vector<Fact> MachineFacts(const Communicator& world) {
  const launch::BlasReport blas = launch::ProbeBlas();
  return {Processor(),    Cores(world.local_size()),
          NumaNodes(),    Memory(),
          LockedMemory(), SharedMemory(),
          HugePages(),    IoUring(),
          Mpi(world),     {"BLAS", blas.name, blas.hint}};
}

void Print(const char* title, const std::vector<Fact>& facts) {
  std::printf("%s\n", title);
  for (const Fact& fact : facts) {
    std::printf("  %-16s %s\n", fact.name.c_str(), fact.value.c_str());
    if (!fact.hint.empty()) std::printf("  %-16s ^ %s\n", "", fact.hint.c_str());
  }
}

// {"build": {name: value, ...}, "machine": {...}, "hints": {name: hint, ...}}
void PrintJson(const std::vector<Fact>& build, const std::vector<Fact>& machine) {
  nlohmann::ordered_json json = {
      {"build", {}}, {"machine", {}}, {"hints", nlohmann::json::object()}};
  for (const auto& [section, facts] :
       {std::pair{"build", &build}, std::pair{"machine", &machine}}) {
    for (const Fact& fact : *facts) {
      json[section][fact.name] = fact.value;
      if (!fact.hint.empty()) json["hints"][fact.name] = fact.hint;
    }
  }
  std::printf("%s\n", json.dump().c_str());
}

int Main(int argc, char** argv) {
  bool as_json = false;
  CLI::App app("Says what this build of ZeroHold has and what this machine gives.", "zh-info");
  app.add_flag("--json", as_json, "One JSON object on one line");
  CLI11_PARSE(app, argc, argv);

  StatusOr<MpiSession> session = MpiSession::Start();
  StatusOr<Communicator> world = session.ok() ? MpiCommunicator(MPI_COMM_WORLD) : session.status();
  if (!world.ok()) {
    std::fprintf(stderr, "zh-info: %s\n", std::string(world.status().message()).c_str());
    return 1;
  }
  if (world->rank() != 0) return 0;
  const std::vector<Fact> build = BuildFacts();
  const std::vector<Fact> machine = MachineFacts(*world);
  if (as_json) {
    PrintJson(build, machine);
  } else {
    Print("This build", build);
    Print("This machine", machine);
  }
  return 0;
}

}  // namespace
}  // namespace zerohold::info

int main(int argc, char** argv) { return zerohold::info::Main(argc, argv); }
