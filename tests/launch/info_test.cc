// zh-info: what it tells, for people and for scripts, and the hints that a test can provoke.
#include "zerohold/info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/launch/program.h"

namespace zerohold::launch_test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;

nlohmann::json Info(const std::string& before = "") {
  const Outcome outcome = RunShell(before + Program("zh-info") + " --json");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  return nlohmann::json::parse(outcome.out);
}

TEST(BuildInfo, NamesWhatKBestTakes) {
  const BuildInfo info = GetBuildInfo();
  EXPECT_THAT(info.version, testing::MatchesRegex("[0-9]+\\.[0-9]+\\.[0-9]+"));
  EXPECT_EQ(info.instruction_sets.at(0), "baseline");
  EXPECT_EQ(info.instruction_sets.back(), info.best_instruction_set);
  EXPECT_THAT(info.communicators, Contains("mpi"));
}

TEST(Info, TellsOfBuildAndMachine) {
  const nlohmann::json info = Info();
  EXPECT_EQ(info.at("build").at("version"), GetBuildInfo().version);
  EXPECT_THAT(info.at("build").at("instruction set").get<std::string>(),
              testing::StartsWith(GetBuildInfo().best_instruction_set));
  for (const char* fact : {"processor", "cores", "NUMA nodes", "memory", "locked memory",
                           "shared memory", "huge pages", "io_uring", "MPI", "BLAS"}) {
    EXPECT_TRUE(info.at("machine").contains(fact)) << fact;
  }
  EXPECT_THAT(info.at("machine").at("MPI").get<std::string>(),
              AllOf(HasSubstr("MPI 3"), HasSubstr("MPI_THREAD_"), HasSubstr("a world of 1")));
  EXPECT_THAT(info.at("machine").at("cores").get<std::string>(),
              HasSubstr(std::to_string(sysconf(_SC_NPROCESSORS_ONLN)) + " online"));
}

TEST(Info, PeopleGetTheSame) {
  const Outcome outcome = RunShell(Program("zh-info"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("This build"), HasSubstr("This machine"),
                                 HasSubstr(GetBuildInfo().version), HasSubstr("io_uring")));
}

TEST(Info, OneRankSpeaksUnderMpirun) {
  const Outcome outcome = RunShell(Mpirun(3) + Program("zh-info") + " --json");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json info = nlohmann::json::parse(outcome.out);  // one object
  EXPECT_THAT(info.at("machine").at("MPI").get<std::string>(), HasSubstr("a world of 3, 3 here"));
  EXPECT_EQ(info.at("hints").contains("cores"), sysconf(_SC_NPROCESSORS_ONLN) < 3);
}

TEST(Info, HintsAtALowLimitOfLockedMemory) {
  const nlohmann::json info = Info("ulimit -l 64 && ");
  const std::string value = info.at("machine").at("locked memory");
  EXPECT_THAT(value, HasSubstr("limit 64.0 KiB"));
  // Who may lock any amount is not hurt by the limit.
  const bool lifted = value.find("CAP_IPC_LOCK") != std::string::npos;
  EXPECT_EQ(info.at("hints").contains("locked memory"), !lifted);
}

TEST(Info, HintsAtMpirunAsRoot) {
  const nlohmann::json info = Info("unset OMPI_ALLOW_RUN_AS_ROOT; ");
  EXPECT_EQ(info.at("hints").contains("MPI"), geteuid() == 0);
  EXPECT_FALSE(Info("export OMPI_ALLOW_RUN_AS_ROOT=1; ").at("hints").contains("MPI"));
}

TEST(Info, HintsAtSlowBlas) {
  // The code that OpenBLAS takes for CPUs that it does not know.
  const nlohmann::json info = Info("export OPENBLAS_CORETYPE=Prescott; ");
  const std::string blas = info.at("machine").at("BLAS");
  if (blas.find("OpenBLAS, code for") == std::string::npos) {
    EXPECT_THAT(info.at("hints").at("BLAS").get<std::string>(), HasSubstr("libopenblas0"));
    return;
  }
  const bool faster = GetBuildInfo().best_instruction_set != "baseline";
  EXPECT_EQ(info.at("hints").contains("BLAS"), faster);
}

}  // namespace
}  // namespace zerohold::launch_test
