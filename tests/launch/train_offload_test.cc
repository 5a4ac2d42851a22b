// Optimizer states on disk: one hash with those in memory, what the log tells of the disk, and what
// is left behind by a rank that is killed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "tests/launch/program.h"

namespace zerohold::launch_test {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::Gt;
using testing::Lt;

using Log = std::vector<nlohmann::json>;

// Small buckets: more records than the window has room for.
std::string Flags(const std::string& more) { return "--bucket-elems 2000 " + more; }
std::string OnDisk(const DiskFolder& disk, const std::string& more) {
  return Flags("--offload nvme --nvme-path " + disk.path() + " " + more);
}

// Bytes read from disk in the last step.
int64_t ReadBytes(const Log& log) {
  return log.size() < 2 ? -1 : log[log.size() - 2].at("disk_read_bytes").get<int64_t>();
}

class TrainOffload : public testing::TestWithParam<std::tuple<int, const char*>> {};

TEST_P(TrainOffload, HashIsTheSameWhereverStatesRest) {
  const auto [ranks, dtype] = GetParam();
  const std::string type = std::string("--dtype ") + dtype;
  const DiskFolder disk;
  const std::string hash = HashOf(TrainAndReadLog(ranks, Flags(type)));
  ASSERT_EQ(hash.size(), 16u);
  const Log all = TrainAndReadLog(ranks, OnDisk(disk, type + " --zero-stage 3"));
  EXPECT_EQ(HashOf(all), hash);
  // About 33,000 parameters, so half of 8 or 12 bytes each.
  const int half_bytes = 33000 * (type.ends_with("fp32") ? 4 : 6) / ranks;
  const std::string mixed = " --host-budget " + std::to_string(half_bytes);
  const Log some =
      TrainAndReadLog(ranks, OnDisk(disk, type + mixed + " --zero-stage 3 --window 3"));
  EXPECT_EQ(HashOf(some), hash);
  EXPECT_THAT(ReadBytes(some), AllOf(Gt(0), Lt(ReadBytes(all))));
  const std::string others[] = {
      " --zero-stage 1 --window 1 --io-engine threads", " --zero-stage 1 --window 2" + mixed,
      " --zero-stage 3 --io-engine threads --offload-faults short=0.3,again=0.2,late=0.2,seed=5",
      " --zero-stage 3 --params-offload nvme --gradients-offload nvme --overlap-next-forward"};
  for (const std::string& flags : others) {
    EXPECT_EQ(HashOf(TrainAndReadLog(ranks, OnDisk(disk, type + flags))), hash) << flags;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, TrainOffload,
                         testing::Combine(testing::Values(1, 2, 3),
                                          testing::Values("fp32", "bf16")),
                         [](const auto& info) {
                           return std::get<1>(info.param) + std::string("_") +
                                  std::to_string(std::get<0>(info.param));
                         });

// The log counts what all ranks moved: the states, once each way, in whole pages.
TEST(TrainOffloadOf, LogTellsTheDisksBytes) {
  const DiskFolder disk;
  const Log log = TrainAndReadLog(2, "--width 128 --zero-stage 3 --offload nvme --nvme-path " +
                                         disk.path() + " --nvme-path " + disk.path());
  ASSERT_EQ(log.size(), 7u);
  // Two blocks of 12 w^2 + 13 w, embeddings of 256 and of 32 rows, the last norm; two moments.
  constexpr int64_t kElems = 2 * (12 * 128 * 128 + 13 * 128) + (256 + 32) * 128 + 2 * 128;
  for (int step = 2; step <= 6; ++step) {
    for (const char* key : {"disk_read_bytes", "disk_written_bytes"}) {
      const auto bytes = log[step - 1].at(key).get<double>();
      EXPECT_THAT(bytes, AllOf(testing::Ge(8 * kElems), Lt(1.05 * 8 * kElems))) << key;
    }
  }
}

// The flags tell what may be on disk; what is there depends on the model.
TEST(TrainOffloadLines, TellWhatIsReallyOnDisk) {
  const DiskFolder disk;
  const std::string files = " in files in " + disk.path();
  const std::pair<std::string, std::string> cases[] = {
      {"", "\non disk: states" + files + "\n"},
      {"--host-budget 1GiB",
       "\non disk: nothing, all that may rest there fits into host memory or stays gathered\n"},
      {"--host-budget 1GiB --zero-stage 3 --params-offload nvme",
       "\non disk: parameters" + files + ", with "}};
  for (const auto& [flags, line] : cases) {
    const Outcome outcome = RunShell(Mpirun(2) + TinyTrain(OnDisk(disk, flags)));
    EXPECT_THAT(outcome.out, testing::HasSubstr(line)) << outcome.err;
  }
}

// A /dev/shm of 64 MiB, and staging of twice that: staging asks nothing of it, so there is nothing
// to tell; no signal, the same bits.
TEST(OffloadCases, OFF_14_Train) {
  const DiskFolder disk;
  const Outcome outcome = RunShell(WithMounts("mount -t tmpfs -o size=64m tmpfs /dev/shm") +
                                   "sh -c '\"$@\"; ls /dev/shm' sh " + Mpirun(2) +
                                   TinyTrain(OnDisk(disk, "--window 21")));
  if (outcome.exit_code == kNoMount) GTEST_SKIP() << "cannot mount here: " << outcome.err;
  EXPECT_EQ(outcome.err, "");
  // Nothing is told of what was left in /dev/shm behind the last line of the run.
  EXPECT_THAT(outcome.out, EndsWith(HashOf(TrainAndReadLog(2, Flags(""))) + "\n"));
}

// A rank that is killed takes the others with it in bounded time, files and shared memory go with
// the processes, and the next run starts clean.
TEST(OffloadCases, OFF_18_Train) {
  const DiskFolder disk;
  const std::string log = TemporaryPath("log"), pids = TemporaryPath("pids");
  const std::string train = TinyTrain(OnDisk(disk, "--steps 99999 --zero-stage 3 --log " + log));
  // Rank 1 is killed when some steps are done.
  const std::string kills = "while kill -0 $! && [ $(cat " + log +
                            " | wc -l) -lt 5 ]; do sleep 0.1; done; "
                            "kill -9 $(sed -n \"s/^1 //p\" " +
                            pids + "); wait $!";
  const auto start = std::chrono::steady_clock::now();
  const Outcome outcome = RunShell(Mpirun(3) + "sh -c 'echo $OMPI_COMM_WORLD_RANK $$ >>" + pids +
                                   "; exec \"$@\"' sh " + train + " & " + kills);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
  EXPECT_NE(outcome.exit_code, 0);
  EXPECT_NE(outcome.exit_code, 110) << "mpirun gave up waiting";
  std::ifstream in(pids);
  int found = 0;
  for (std::string rank, pid; in >> rank >> pid; ++found) {
    EXPECT_TRUE(Ends(pid)) << "rank " << rank;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      EXPECT_FALSE(entry.path().filename().string().starts_with("zerohold." + pid + "."));
    }
  }
  EXPECT_EQ(found, 3);
  EXPECT_TRUE(std::filesystem::is_empty(disk.path()));
  std::remove(log.c_str());
  std::remove(pids.c_str());
  EXPECT_EQ(HashOf(TrainAndReadLog(3, OnDisk(disk, "--zero-stage 3"))),
            HashOf(TrainAndReadLog(3, Flags(""))));
}

}  // namespace
}  // namespace zerohold::launch_test
