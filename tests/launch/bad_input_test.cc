// Bad input under mpirun: one line that names the thing, exit code 1 on all ranks, nothing hangs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "tests/launch/program.h"

namespace zerohold::launch_test {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// Each rank tells its own exit code, since mpirun tells one alone.
std::string Telling(const std::string& command) {
  return "sh -c '\"$0\" \"$@\"; echo exit $?' " + command;
}

// Two ranks with these flags each.
Outcome RunTwo(const std::string& flags0, const std::string& flags1) {
  return RunShell(Mpirun(1) + Telling(TinyTrain(flags0)) + " : -n 1 " + Telling(TinyTrain(flags1)));
}

void ExpectRefused(const Outcome& outcome, const std::string& names, const std::string& mends) {
  EXPECT_EQ(outcome.out, "exit 1\nexit 1\n");
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(StartsWith("zh-train: "), HasSubstr(names), HasSubstr(mends)));
}

TEST(BadInput, OfAllRanks) {
  const std::string empty = TemporaryPath("empty"), tiny = TemporaryPath("short");
  std::ofstream(empty).close();
  std::ofstream(tiny) << std::string(32, 'x');
  const struct {
    std::string flags, names, mends;
  } cases[] = {
      {"--data /no/such/path", "--data /no/such/path does not exist", "give files or folders"},
      {"--data " + empty, empty + " holds no bytes", "give files or folders"},
      {"--data " + tiny, "holds 32 bytes, and one sample of --context 32 takes 33", "more text"},
      {"--width 33", "--width 33 is no multiple of --heads 2", "the heads divide"},
      {"--dtype fp8", "--dtype fp8 is unknown", "give fp32, bf16 or fp16"},
      {"--zero-stage 4", "--zero-stage is 4", "give 3 or less"},
      {"--layers 1000000000", "--layers is 1000000000", "give 10000 or less"},
      {"--steps 1e6", "--steps: \"1e6\" is no whole number", "give digits alone"},
      {"--optimizer-rule sgd --beta1 0.5",
       "zh-train: rank 0: --beta1 is 0.5, which Sgd does not read", "leave it"},
      {"--dtype fp16 --loss-scale 0", "--loss-scale is 0", "give 2^-126 or more"},
      {"--zero-stage 3 --max-live-parameters 1KiB", "--max-live-parameters is 1024", "or 0"},
      {"--log /no/such/folder/log", "--log /no/such/folder/log", "give a file"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.flags);
    ExpectRefused(RunTwo(c.flags, c.flags), c.names, c.mends);
  }
  std::remove(empty.c_str());
  std::remove(tiny.c_str());
}

TEST(BadInput, OfRanksThatDisagree) {
  const struct {
    std::string flags0, flags1, names;
  } cases[] = {
      {"", "--width 64", "rank 1: width=64, but width=32 on rank 0"},
      {"--seed 7", "", "rank 1: seed=1, but seed=7 on rank 0"},
      {"", "--dtype bf16", "rank 1: dtype=\"bf16\", but dtype=\"fp32\" on rank 0"},
      {"", "--steps 7", "rank 1: steps=7, but steps=6 on rank 0"},
      {"", "--data /usr/share/common-licenses/BSD", "rank 1: data=1499 bytes"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.flags0 + " : " + c.flags1);
    ExpectRefused(RunTwo(c.flags0, c.flags1), c.names, "give every rank the same");
  }
}

TEST(BadInput, OfOneRankAlone) {
  ExpectRefused(RunTwo("", "--heads 0"), "rank 1: --heads is 0", "give 1 or more");
  ExpectRefused(RunTwo("", "--data /no/such/path"), "rank 1: --data /no/such/path", "give files");
  ExpectRefused(RunTwo("--what", ""), "rank 0: The following argument", "--help");
}

std::string OnDisk(const std::string& flags) { return "--offload nvme --nvme-path " + flags; }

TEST(BadInput, OfOffload) {
  const DiskFolder disk;
  const std::string file = TemporaryPath("file");
  std::ofstream(file).close();
  const struct {
    std::string flags, names, mends;
  } cases[] = {
      {OnDisk("/no/such"), "--nvme-path: \"/no/such\" does not exist", "make it, or name another"},
      {OnDisk(file), "--nvme-path: \"" + file + "\" is not a folder", "name a folder"},
      {OnDisk("/dev/shm"), "--nvme-path: \"/dev/shm\" lies in memory (tmpfs)", "on a disk"},
      {OnDisk(disk.path() + " --nvme-path /no/such"), "\"/no/such\" does not exist", "make it"},
      {OnDisk(disk.path() + " --window 5000"), "--window is 5000", "give 4096 or less"},
      {OnDisk(disk.path() + " --offload-faults eioo=1"), "\"eioo=1\" is none of", "short"},
      {"--offload nvme", "--offload nvme needs a folder", "give --nvme-path"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.flags);
    ExpectRefused(RunTwo(c.flags, c.flags), c.names, c.mends);
  }
  std::remove(file.c_str());
  // Each rank may have folders of its own.
  ExpectRefused(RunTwo(OnDisk(disk.path()), OnDisk("/no/such")),
                "rank 1: --nvme-path: \"/no/such\"", "name another folder");
  ExpectRefused(RunTwo("", OnDisk(disk.path())), "rank 1: offload=\"nvme\"", "the same");
}

TEST(BadInput, OfDisksThatTakeNothing) {
  const DiskFolder disk;
  const std::string path = disk.path(), image = path + ".image";
  const std::string two = Mpirun(2) + Telling(TinyTrain(OnDisk(path + " --width 128")));
  const Outcome small =
      RunShell(WithMounts("truncate -s 1M " + image + " && mkfs.ext4 -q -O ^has_journal " + image +
                          " && mount -o loop " + image + " " + path) +
               two);
  std::remove(image.c_str());
  const Outcome sealed = RunShell(
      WithMounts("mount --bind " + path + " " + path + " && mount -o remount,bind,ro " + path) +
      two);
  if (small.exit_code == kNoMount || sealed.exit_code == kNoMount) {
    GTEST_SKIP() << "cannot mount here: " << small.err << sealed.err;
  }
  ExpectRefused(small, "\"" + path + "\" has too little room: asked ", "free room there");
  EXPECT_THAT(small.err, HasSubstr(" on the file system mounted at " + path));
  ExpectRefused(sealed, "\"" + path + "\" takes no file: Read-only", "make it writable");
}

TEST(BadInput, OfAScaleThatNoStepSurvives) {
  const std::string flags = "--dtype fp16 --loss-scale 1e30 --steps 101 --zero-stage 2";
  const Outcome outcome = RunShell(Mpirun(2) + Telling(TinyTrain(flags)));
  EXPECT_THAT(outcome.out, AllOf(EndsWith("exit 1\nexit 1\n"), Not(HasSubstr("parameters_hash"))));
  EXPECT_EQ(std::count(outcome.err.begin(), outcome.err.end(), '\n'), 1) << outcome.err;
  EXPECT_THAT(outcome.err,
              AllOf(StartsWith("zh-train: "), HasSubstr("100"), HasSubstr("embedding.tokens"),
                    HasSubstr("lower --loss-scale or the learning rate or look at its inputs"),
                    Not(HasSubstr("max_skips"))));
}

TEST(BadInput, HelpIsNoError) {
  const Outcome outcome = RunShell(Mpirun(2) + Program("zh-train") + " --help");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(StartsWith("Trains a small GPT"), HasSubstr("--zero-stage")));
}

}  // namespace
}  // namespace zerohold::launch_test
