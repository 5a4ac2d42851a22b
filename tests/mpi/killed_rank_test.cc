// A rank that is killed in the midst of a step, with records on a slow disk: the job ends in
// bounded time, and nothing is left of any rank, on the disk or in shared memory. The same program
// is the test and, under mpirun, the job that dies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/launch/program.h"
#include "tests/support/ranks.h"
#include "tests/support/seeded.h"
#include "tests/support/trainer.h"
#include "zerohold/mpi.h"

namespace zerohold::testing {
namespace {

using launch_test::DiskFolder;
using launch_test::Ends;
using launch_test::Mpirun;
using launch_test::Outcome;
using launch_test::RunShell;
using launch_test::TemporaryPath;

namespace fs = std::filesystem;

constexpr int kRanks = 3;

// What each row of the test is: a stage, what rests on disk, and where rank 1 dies.
struct Row {
  const char* name;
  int stage;
  bool overlap;
  bool in_backward;  // else while updates wait for the disk
};
constexpr Row kRows[] = {{"states", 1, false, false},
                         {"everything", 3, false, false},
                         {"everything_in_backward", 3, false, true},
                         {"everything_under_forward", 3, true, false}};

// At a rate that makes the updates of one step take more than a second.
EngineOptions Options(const Row& row, const std::string& folder) {
  EngineOptions options = OptionsOfStage(row.stage);
  options.max_micro_batches = 1;
  options.overlap_next_forward = row.overlap;
  options.record_elems = 16 << 10;
  options.notice = [](const std::string&) {};
  options.offload.nvme_paths = {folder};
  options.offload.read_rate = options.offload.write_rate = 1e6;
  if (row.stage == 3) {
    options.offload.host.gradients = options.offload.host.parameters = 0;
  }
  return options;
}

// The job: one line about itself to `log`, and after a moment in the step, for rank 1, the end.
void TrainAndDie(const Row& row, const std::string& folder, const std::string& log) {
  auto ranks = MpiCommunicator(MPI_COMM_WORLD);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const int rank = ranks->rank();
  std::ofstream out(log + std::to_string(rank));
  out << getpid() << std::endl;
  Trainer trainer(Options(row, folder), *ranks, TensorsInUnits({160'000, 120'000, 120'000}),
                  Constant(1.0f));
  const auto die = [&] {
    out << "dies" << std::endl;
    kill(getpid(), SIGKILL);
  };
  std::thread killer;
  const auto die_soon = [&] {
    if (rank != 1) return;
    killer = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      die();
    });
  };
  ASSERT_TRUE(trainer.engine().BeginMicroBatch().ok());
  trainer.Backward(2, SeededGradient(rank, 0));
  if (row.in_backward && rank == 1) die();
  for (const UnitId unit : {1, 0}) {
    if (!trainer.TryBackward(unit, SeededGradient(rank, 0)).ok()) break;
  }
  if (!row.overlap) die_soon();
  const Status stepped = trainer.engine().Step().status();
  if (row.overlap) {
    die_soon();
    trainer.engine().Quiesce().IgnoreError();  // until all updates are done
  }
  out << "went on: " << stepped << std::endl;
  if (killer.joinable()) killer.join();
}

class KilledRank : public ::testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(Disk, KilledRank, ::testing::ValuesIn(kRows),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(KilledRank, TakesTheJobWithItAndLeavesNothing) {
  if (const char* const folder = std::getenv("ZH_KILLED_FOLDER")) {
    return TrainAndDie(GetParam(), folder, std::getenv("ZH_KILLED_LOG"));
  }
  const DiskFolder disk;
  const std::string log = TemporaryPath("killed");
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome = RunShell(
      "ZH_KILLED_FOLDER=" + disk.path() + " ZH_KILLED_LOG=" + log + " " + Mpirun(kRanks) +
      fs::read_symlink("/proc/self/exe").string() +
      " --gtest_filter=Disk/KilledRank.TakesTheJobWithItAndLeavesNothing/" + GetParam().name);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  EXPECT_NE(outcome.exit_code, 0) << outcome.out;
  EXPECT_NE(outcome.exit_code, 110) << "mpirun gave up waiting";
  for (int rank = 0; rank < kRanks; ++rank) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    std::ifstream in(log + std::to_string(rank));
    std::string pid, then;
    ASSERT_TRUE(in >> pid) << outcome.err;
    if (rank == 1) {
      EXPECT_TRUE(in >> then && then == "dies" && !(in >> then)) << "not in the step: " << then;
    }
    EXPECT_TRUE(Ends(pid));
    for (const auto& entry : fs::directory_iterator("/dev/shm")) {
      EXPECT_FALSE(entry.path().filename().string().starts_with("zerohold." + pid + "."));
    }
    fs::remove(log + std::to_string(rank));
  }
  EXPECT_TRUE(fs::is_empty(disk.path()));
}

}  // namespace
}  // namespace zerohold::testing
