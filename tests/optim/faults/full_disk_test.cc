// A real disk that is full, of 64 MiB and for these tests alone: before the first step, and in the
// midst of one, where it reserves nothing. Where it cannot be mounted, that is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/statvfs.h>

#include <barrier>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "tests/src/memory/child.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

using memory::InChild;
using ::testing::AllOf;
using ::testing::HasSubstr;

namespace fs = std::filesystem;

// The disk, mounted in a child that alone sees it; its files go with the object.
class SmallDisk {
 public:
  SmallDisk() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    fs::create_directory(point());
  }
  ~SmallDisk() { fs::remove_all(folder_); }

  // What `body` says of the folder, which it may fill; "skip: ..." where nothing can be mounted.
  std::string With(const std::string& features, const std::function<std::string()>& body) const {
    return InChild([&]() -> std::string {
      if (unshare(CLONE_NEWNS) != 0 ||
          mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
        return "skip: cannot mount here";
      }
      const std::string image = folder_ + "/image";
      const std::string command = "{ PATH=$PATH:/usr/sbin:/sbin; truncate -s 64M " + image +
                                  " && mkfs.ext4 -q -F " + features + " " + image +
                                  " && mount -o loop " + image + " " + point() +
                                  "; } > /dev/null 2>&1";
      if (std::system(command.c_str()) != 0) return "skip: cannot make a small file system here";
      fs::create_directory(records());
      const int64_t before = FreeBytes();
      std::string told = body();
      if (!fs::is_empty(records())) told += "a file is left\n";
      // The kernel lets go of a ring's files when it has time.
      for (int tries = 0; tries < 100 && FreeBytes() != before; ++tries) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
      }
      if (FreeBytes() != before) told += "room is left taken\n";
      umount(point().c_str());
      return told;
    });
  }

  std::string point() const { return folder_ + "/disk"; }
  std::string records() const { return point() + "/records"; }
  int64_t FreeBytes() const {
    struct statvfs system = {};
    EXPECT_EQ(statvfs(point().c_str(), &system), 0);
    return static_cast<int64_t>(system.f_frsize) * static_cast<int64_t>(system.f_bavail);
  }

 private:
  std::string folder_ = ZH_TEST_FOLDER "/full_disk.XXXXXX";
};

// States of 4 bytes an element on each of two ranks, with AdamW's two moments.
EngineOptions OnDisk(const SmallDisk& disk) {
  EngineOptions options = OptionsOfStage(1);
  options.offload.nvme_paths = {disk.records()};
  options.record_elems = 32 << 10;
  options.notice = [](const std::string&) {};
  return options;
}

// What both ranks were told; "differ: " and both, if they do.
std::string OnTwoRanks(const std::function<Status(const Communicator&)>& body) {
  std::string told[2];
  RunRanks(
      2, [&](int rank, const Communicator& ranks) { told[rank] = body(ranks).ToString() + "\n"; });
  return told[0] == told[1] ? told[0] : "differ: " + told[0] + told[1];
}

TEST(FullDisk, IsToldBeforeTheFirstStep) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer starts no thread in a child of a process with threads";
#endif
  const SmallDisk disk;
  const std::string result = disk.With("", [&] {
    // One rank's 36 MB fit, and no others'.
    const std::string refused = OnTwoRanks([&](const Communicator& ranks) {
      const ModelSpec model = Tensors({9'000'000});
      return Engine::Create(OnDisk(disk), {ranks}, model.parameters, model.units).status();
    });
    const std::string smaller = OnTwoRanks([&](const Communicator& ranks) {
      Trainer trainer(OnDisk(disk), ranks, Tensors({100'000}), Constant(1));
      return trainer.TryStep(Gradients({{0.5f}})).status();
    });
    return refused + "then " + smaller;
  });
  if (result.starts_with("skip")) GTEST_SKIP() << result;
  EXPECT_THAT(result, AllOf(::testing::StartsWith("RESOURCE_EXHAUSTED: rank "),
                            HasSubstr(": nvme_paths: \"" + disk.records() +
                                      "\" has too little room: asked "),
                            HasSubstr(" bytes, free "),
                            HasSubstr(" bytes on the file system mounted at " + disk.point() +
                                      "; free room there, or give more or other folders\n"),
                            ::testing::EndsWith("\nthen OK\n")));
}

// This file system reserves nothing, and somebody else takes what was there at Create.
TEST(FullDisk, IsToldInTheMidstOfAStep) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer starts no thread in a child of a process with threads";
#endif
  const SmallDisk disk;
  for (const IoEngine engine : {IoEngine::kBest, IoEngine::kThreads}) {
    const std::string result = disk.With("-O ^extent,^64bit", [&] {
      const std::string others = disk.point() + "/of_another";
      std::barrier both(2);
      std::string told = OnTwoRanks([&](const Communicator& ranks) -> Status {
        EngineOptions options = OnDisk(disk);
        options.offload.io_engine = engine;
        Trainer trainer(options, ranks, Tensors({2'000'000}), Constant(1));
        both.arrive_and_wait();
        if (ranks.rank() == 0) {
          std::ofstream(others) << std::string(disk.FreeBytes() - (2 << 20), 'x') << std::flush;
        }
        both.arrive_and_wait();
        const Status failed = trainer.TryStep(Gradients({{0.5f}})).status();
        const Status later = trainer.engine().Step().status();
        return later == failed ? failed : absl::UnknownError("it recovered");
      });
      fs::remove(others);
      return told;
    });
    if (result.starts_with("skip")) GTEST_SKIP() << result;
    EXPECT_THAT(result, AllOf(::testing::MatchesRegex(
                                  "RESOURCE_EXHAUSTED: rank [01]: tier nvme: record [0-9]+: "
                                  "nvme_paths: .*: write of [0-9]+ bytes at [0-9]+, [0-9]+ of them "
                                  "moved, by .*: No space left on device; free room there, or name "
                                  "another folder in nvme_paths\n"),
                              HasSubstr(disk.records())));
  }
}

}  // namespace
}  // namespace zerohold::testing
