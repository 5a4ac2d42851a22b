#include "tests/launch/program.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

namespace zerohold::launch_test {
namespace {

std::string Contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

bool Ends(const std::string& pid) {
  for (int tries = 0; tries < 100; ++tries) {
    std::ifstream in("/proc/" + pid + "/stat");
    std::string number, name, state = "Z";
    in >> number >> name >> state;
    if (state == "Z" || state == "X") return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return false;
}

std::string TemporaryPath(const std::string& name) {
  static std::atomic<int> count = 0;
  return testing::TempDir() + "zh-" + std::to_string(getpid()) + "-" + std::to_string(++count) +
         "-" + name;
}

Outcome RunShell(const std::string& command) {
  const std::string out = TemporaryPath("out"), err = TemporaryPath("err");
  const int status = std::system(("( " + command + " ) >" + out + " 2>" + err).c_str());
  Outcome outcome{WIFEXITED(status) ? WEXITSTATUS(status) : -1, Contents(out), Contents(err)};
  std::remove(out.c_str());
  std::remove(err.c_str());
  return outcome;
}

std::string Mpirun(int ranks) {
  return std::string(ZH_MPIRUN_TEXT) + " -q --timeout 100 -n " + std::to_string(ranks) + " ";
}

std::string Program(const std::string& name) { return std::string(ZH_BIN) + "/" + name; }

std::string WithMounts(const std::string& prepare) {
  const std::string no_mount = "exit " + std::to_string(kNoMount);
  return "unshare --mount true || " + no_mount +
         "; unshare --mount sh -c 'PATH=$PATH:/sbin:" + "/usr/sbin; mount --make-rprivate / && " +
         prepare + " || " + no_mount + "; exec \"$@\"' sh ";
}

std::string TinyTrain(const std::string& flags) {
  std::string command = Program("zh-train") + " " + flags;
  for (const std::string small :
       {"--layers 2", "--width 32", "--heads 2", "--context 32", "--micro-batch 2", "--steps 6"}) {
    const bool given = flags.find(small.substr(0, small.find(' ') + 1)) != std::string::npos;
    if (!given) command += " " + small;
  }
  return command;
}

DiskFolder::DiskFolder() : path_(std::string(ZH_TEST_FOLDER) + "/disk.XXXXXX") {
  EXPECT_NE(mkdtemp(path_.data()), nullptr) << path_;
}

DiskFolder::~DiskFolder() {
  EXPECT_TRUE(std::filesystem::is_empty(path_)) << path_;
  std::filesystem::remove_all(path_);
}

std::vector<nlohmann::json> TrainAndReadLog(int ranks, const std::string& flags) {
  const std::string path = TemporaryPath("log");
  const Outcome outcome = RunShell(Mpirun(ranks) + TinyTrain(flags) + " --log " + path);
  EXPECT_EQ(outcome.exit_code, 0) << flags << "\n" << outcome.err;
  std::vector<nlohmann::json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  std::remove(path.c_str());
  return lines;
}

std::string HashOf(const std::vector<nlohmann::json>& log) {
  return log.empty() ? "" : log.back().value("parameters_hash", "");
}

}  // namespace zerohold::launch_test
