// Optimizer states on disk and staging memory, by the ids of the cases. What must not reach other
// tests (limits, refused calls, mounts, ends of a process) happens in a child.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <malloc.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>

#include "tests/offload/io/refuse_calls.h"
#include "tests/src/memory/child.h"
#include "tests/support/ranks.h"
#include "tests/support/toy9.h"
#include "tests/support/trainer.h"

namespace zerohold::testing {
namespace {

using io::RefuseCall;
using io::Where;
using memory::InChild;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

namespace fs = std::filesystem;

constexpr int64_t kMiB = int64_t{1} << 20;

// A new folder on the disk of the build; it goes with the object.
class Folder {
 public:
  Folder() { EXPECT_NE(mkdtemp(path_.data()), nullptr) << path_; }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::string& path() const { return path_; }
  // What its files hold, by name.
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::directory_iterator(path_)) {
      std::ifstream in(entry.path(), std::ios::binary);
      all[entry.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
    }
    return all;
  }

 private:
  std::string path_ = ZH_TEST_FOLDER "/offload.XXXXXX";
};

EngineOptions OnDisk(EngineOptions options, const Folder& folder) {
  options.offload.nvme_paths = {folder.path()};
  options.notice = [](const std::string&) {};
  return options;
}

// In a child, since other tests keep their rights: "" when done, else why not.
std::string RefuseNamelessFiles() {
  return RefuseCall(__NR_openat, EOPNOTSUPP,
                    {{2, Where::Test::kHasBits, O_TMPFILE & ~O_DIRECTORY}});
}

// What two ranks are told while they train TOY-9 in a child after `prepare`, one "rank 0: ..." a
// line; "skip: ..." if it cannot be prepared. The values are checked.
std::string TrainToy(const EngineOptions& options, const std::function<std::string()>& prepare) {
  return InChild([&]() -> std::string {
    const std::string skip = prepare();
    if (!skip.empty()) return skip.starts_with("skip") ? skip : "skip: " + skip;
    std::string told;
    std::mutex mutex;
    RunRanks(2, [&](int rank, const Communicator& ranks) {
      EngineOptions mine = Toy9::Options(options);
      mine.notice = [&, rank](const std::string& line) {
        const std::lock_guard lock(mutex);
        told += "rank " + std::to_string(rank) + ": " + line + "\n";
      };
      Toy9::Check(Toy9::Train(mine, ranks, Toy9::Model(), 1));
    });
    return told + (::testing::Test::HasFailure() ? "FAILED\n" : "");
  });
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::ranges::sort(lines);
  return lines;
}

// 64 KiB of locked memory and no right to more.
std::string LockLittle() {
  const rlimit low = {64 << 10, 64 << 10};
  __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct rights[_LINUX_CAPABILITY_U32S_3] = {};
  if (setrlimit(RLIMIT_MEMLOCK, &low) != 0 || syscall(SYS_capget, &header, rights) != 0) {
    return "cannot lower the limit";
  }
  rights[0].effective &= ~(1u << CAP_IPC_LOCK);
  rights[0].permitted &= ~(1u << CAP_IPC_LOCK);
  if (syscall(SYS_capset, &header, rights) != 0) return "cannot give the right away";
  void* const memory =
      mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return mlock(memory, kMiB) == 0 ? "this kernel locks all the same" : "";
}

TEST(OffloadCases, OFF_02) {
  const Folder folder;
  EngineOptions options = OnDisk(OptionsOfStage(1), folder);
  options.offload.window = 6;  // slots of 3 MiB and a page
  for (const IoEngine engine : {IoEngine::kBest, IoEngine::kThreads}) {
    options.offload.io_engine = engine;
    options.offload.require_pinned = false;
    const std::string result = TrainToy(options, LockLittle);
    if (result.starts_with("skip")) GTEST_SKIP() << result;
    const std::vector<std::string> told = Lines(result);
    ASSERT_EQ(told.size(), 2u) << result;  // one a rank
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_THAT(told[rank], AllOf(HasSubstr("rank " + std::to_string(rank)),
                                    HasSubstr("locking 18898944 bytes of staging memory"),
                                    HasSubstr("is 65536 bytes: raise it by ulimit -l")));
    }
  }
  options.offload.require_pinned = true;
  const std::string refused = InChild([&]() -> std::string {
    if (const std::string skip = LockLittle(); !skip.empty()) return skip;
    std::string all;
    std::mutex mutex;
    RunRanks(2, [&](int, const Communicator& ranks) {
      const ModelSpec model = Toy9::Model();
      const Status status =
          Engine::Create(Toy9::Options(options), {ranks}, model.parameters, model.units).status();
      const std::lock_guard lock(mutex);
      all += status.ToString() + "\n";
    });
    return all;
  });
  const std::vector<std::string> errors = Lines(refused);
  ASSERT_EQ(errors.size(), 2u) << refused;
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("RESOURCE_EXHAUSTED"), HasSubstr("locking 18898944 bytes"),
                             HasSubstr("raise it by ulimit -l")));
  }
}

int64_t ResidentBytes() {
  int64_t pages = 0;
  std::ifstream in("/proc/self/statm");
  in >> pages >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

int64_t OpenFiles() { return std::ranges::distance(fs::directory_iterator("/proc/self/fd")); }

// The row saves every 50 steps, which this version does not.
TEST(OffloadCases, OFF_04) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer keeps what was freed";
#endif
  const Folder folder;
  mallopt(M_MMAP_THRESHOLD, 128 << 10);  // the trainer's own memory goes back when it is freed
  for (const bool disk : {false, true}) {
    int64_t resident_bytes[2] = {}, open_files[2] = {};
    std::barrier both(2);
    EngineOptions options = OptionsOfStage(1);
    if (disk) options = OnDisk(options, folder);
    RunRanks(2, [&](int rank, const Communicator& ranks) {
      Trainer trainer(options, ranks, TensorsInUnits({600'000, 400'000}), Constant(1));
      const auto gradients = Gradients({{0.5f}, {-0.25f}});
      for (int step = 1; step <= 300; ++step) {
        trainer.Step(gradients);
        if (step != 60 && step != 300) continue;
        both.arrive_and_wait();  // counted while the other rank waits
        if (rank == 0) {
          resident_bytes[step == 300] = ResidentBytes();
          open_files[step == 300] = OpenFiles();
        }
        both.arrive_and_wait();
      }
    });
    EXPECT_LE(resident_bytes[1], resident_bytes[0] + resident_bytes[0] / 100);
    EXPECT_EQ(open_files[1], open_files[0]);
  }
}

// Masters and moments after some steps on `world` ranks.
std::vector<float> States(int world, const EngineOptions& options, const ModelSpec& model,
                          int steps) {
  std::vector<float> states;
  std::mutex mutex;
  RunRanks(world, [&](int rank, const Communicator& ranks) {
    Trainer trainer(options, ranks, model, [](ParameterId id, int64_t i) {
      return static_cast<float>(id) + 0.001f * static_cast<float>(i % 1000);
    });
    for (int step = 0; step < steps; ++step) {
      trainer.Step([&](ParameterId, std::span<const float> values, std::span<float> gradient) {
        for (size_t i = 0; i < values.size(); ++i) {
          gradient[i] += values[i] - static_cast<float>((i * 7 + step + 3 * rank) % 11);
        }
      });
    }
    const std::vector<float> mine = trainer.ReadStates();
    const std::lock_guard lock(mutex);
    if (states.empty()) states = mine;
    EXPECT_EQ(mine, states);
  });
  return states;
}

// Sizes are rounded up to a multiple of 256, here 513024, and any of them works.
TEST(OffloadCases, OFF_06) {
  const Folder folder;
  for (const int world : {1, 2}) {
    for (const int stage : {1, 3}) {
      const EngineOptions options = OptionsOfStage(stage);
      const std::vector<float> expected = States(world, options, Tensors({513'000}), 3);
      EngineOptions odd = OnDisk(options, folder);
      odd.record_elems = odd.bucket_elems = 513'000;
      EXPECT_EQ(States(world, odd, Tensors({513'000}), 3), expected);
    }
  }
}

// Nothing of what lies in the folder is read, removed or added to.
TEST(OffloadCases, OFF_08) {
  const Folder folder;
  constexpr int64_t kFileBytes = 3 * 8192;  // of three records of TOY-9, with their headers
  for (const std::string name : {"zerohold", "zerohold.000000", "zerohold.0", "rank0.records",
                                 "w.moment1", "0_param.tensor.swp"}) {
    for (const int64_t bytes : {kFileBytes, kFileBytes / 2}) {
      std::ofstream(folder.path() + "/" + name + (bytes == kFileBytes ? "" : ".half"))
          << std::string(bytes, '\xff');
    }
  }
  const auto planted = folder.files();
  for (int run = 0; run < 5; ++run) {
    RunRanks(2, [&](int, const Communicator& ranks) {
      const EngineOptions options = OnDisk(OptionsOfStage(run % 4), folder);
      Toy9::Check(Toy9::Train(Toy9::Options(options), ranks, Toy9::Model(), 1));
    });
    EXPECT_EQ(folder.files(), planted) << "run " << run;
  }
  // The same where files need a name for a moment.
  const EngineOptions options = OnDisk(OptionsOfStage(1), folder);
  EXPECT_THAT(TrainToy(options, RefuseNamelessFiles),
              ::testing::AnyOf(IsEmpty(), ::testing::StartsWith("skip")));
  EXPECT_EQ(folder.files(), planted);
}

TEST(OffloadCases, OFF_10) {
  const Folder folder;
  const ModelSpec model = TensorsInUnits({600'000, 400'000});
  for (const IoEngine engine : {IoEngine::kBest, IoEngine::kThreads}) {
    EngineOptions options = OnDisk(OptionsOfStage(1), folder);
    options.record_elems = 64 << 10;
    options.offload.io_engine = engine;
    const std::vector<float> expected = States(2, options, model, 10);
    options.offload.faults = "halve_every=3,again_every=5";
    EXPECT_TRUE(States(2, options, model, 10) == expected);  // too long to print
  }
}

// Where io_uring is blocked, threads take over, and each rank says so once; who asked for io_uring
// is refused.
TEST(OffloadCases, OFF_12) {
  const Folder folder;
  for (const int error : {EPERM, ENOSYS}) {
    const auto block = [=] { return RefuseCall(__NR_io_uring_setup, error); };
    EngineOptions options = OnDisk(OptionsOfStage(1), folder);
    const std::string result = TrainToy(options, block);
    if (result.starts_with("skip")) GTEST_SKIP() << result;
    const std::vector<std::string> told = Lines(result);
    ASSERT_EQ(told.size(), 2u) << result;
    for (const std::string& line : told) {
      EXPECT_THAT(line, AllOf(HasSubstr(std::string("io_uring_setup: ") + std::strerror(error)),
                              HasSubstr("; disk transfers go through 8 threads")));
    }
    options.offload.io_engine = IoEngine::kUring;
    const std::string refused = InChild([&]() -> std::string {
      block();
      const ModelSpec model = Toy9::Model();
      return std::string(Engine::Create(Toy9::Options(options), {SelfCommunicator()},
                                        model.parameters, model.units)
                             .status()
                             .message());
    });
    EXPECT_THAT(refused, AllOf(HasSubstr(std::string("io_uring_setup: ") + std::strerror(error)),
                               HasSubstr("io_engine")));
  }
}

// The names that `body` makes in /dev/shm, of this process.
std::set<std::string> NamesMadeBy(const std::function<void()>& body) {
  const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  inotify_add_watch(watch, "/dev/shm", IN_CREATE);
  body();
  const std::string own = "zerohold." + std::to_string(getpid()) + ".";
  std::set<std::string> names;
  alignas(inotify_event) char events[65536];
  for (ssize_t bytes; (bytes = read(watch, events, sizeof(events))) > 0;) {
    for (const char* at = events; at < events + bytes;) {
      const auto* event = reinterpret_cast<const inotify_event*>(at);
      if (std::string(event->name).starts_with(own)) names.insert(event->name);
      at += sizeof(inotify_event) + event->len;
    }
  }
  close(watch);
  return names;
}

// Without /proc ranks cannot open each other's descriptors, and a segment has a name for a moment.
std::string HideProc() {
  if (unshare(CLONE_NEWNS) == 0 &&
      mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
      mount("tmpfs", "/proc", "tmpfs", 0, "size=4k") == 0) {
    return "";
  }
  return "skip: cannot hide /proc here: " + std::string(std::strerror(errno));
}

// A segment of another user under each name that a first run took, then two jobs at once in one
// folder.
std::string TrainBesideAnothersSegments(bool named, const EngineOptions& options) {
  const std::string skip = named ? HideProc() : "";
  if (!skip.empty()) return skip;
  const auto train = [&] {
    RunRanks(2, [&](int, const Communicator& ranks) {
      Toy9::Check(Toy9::Train(Toy9::Options(options), ranks, Toy9::Model(), 1));
    });
  };
  const std::set<std::string> names = NamesMadeBy(train);
  if (names.empty() == named) return named ? "no name was made" : "a name was made";
  for (const std::string& name : names) {
    const std::string path = "/dev/shm/" + name;
    if (fs::exists(path)) return path + " was left";
    std::ofstream(path) << "of another";
    fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
    if (chown(path.c_str(), 65534, 65534) != 0) fs::permissions(path, fs::perms::none);
  }
  const auto job = [&]() -> std::string {
    for (int run = 0; run < 3; ++run) train();
    return ::testing::Test::HasFailure() ? "FAILED" : "";
  };
  std::string results[2];
  std::thread other([&] { results[1] = InChild(job); });
  results[0] = InChild(job);
  other.join();
  train();
  for (const std::string& name : names) {
    if (!fs::remove("/dev/shm/" + name)) results[0] += " another's " + name + " is gone";
  }
  return results[0] + results[1] + (::testing::Test::HasFailure() ? "FAILED" : "");
}

TEST(OffloadCases, OFF_16) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the thread sanitizer starts no thread in a child of a process with threads";
#endif
  const Folder folder;
  const EngineOptions options = OnDisk(OptionsOfStage(1), folder);
  for (const bool named : {false, true}) {
    const std::string result = InChild([&] { return TrainBesideAnothersSegments(named, options); });
    if (result.starts_with("skip")) continue;
    EXPECT_EQ(result, "");
    EXPECT_THAT(folder.files(), IsEmpty());
  }
}

// Names of segments whose maker is no more.
std::set<std::string> Orphans() {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("zerohold.")) continue;
    const std::string pid = name.substr(9, name.find('.', 9) - 9);
    if (!fs::exists("/proc/" + pid)) names.insert(name);
  }
  return names;
}

// How a job ends, in the midst of a window.
enum class End { kReturn, kException, kUncaught, kTerm };

void TrainUntil(End end, const EngineOptions& options, int rank, const Communicator& ranks) {
  Trainer trainer(options, ranks, TensorsInUnits({5000, 300}), Constant(1));
  for (int step = 0; step < 3; ++step) trainer.Step(Gradients({{0.5f}, {0.25f}}));
  EXPECT_TRUE(trainer.engine().BeginMicroBatch().ok());
  // The peer may have gone already.
  trainer.TryBackward(1, Gradients({{0.5f}, {0.25f}})).IgnoreError();
  EXPECT_TRUE(fs::is_empty(options.offload.nvme_paths[0])) << "no file has a name meanwhile";
  if (end == End::kReturn) return;
  if (end == End::kTerm) kill(getpid(), SIGTERM);
  if (end == End::kTerm || rank == 1) pause();
  throw std::runtime_error("of the trainer's own");
}

TEST(OffloadCases, OFF_22) {
  const Folder folder;
  const std::set<std::string> before = Orphans();
  const std::pair<End, const char*> ends[] = {{End::kReturn, ""},
                                              {End::kException, "caught"},
                                              {End::kUncaught, "killed by signal 6"},
                                              {End::kTerm, "killed by signal 15"}};
  for (const bool nameless : {true, false}) {
    for (const auto& [end, expected] : ends) {
      const EngineOptions options = OnDisk(OptionsOfStage(1), folder);
      const std::string result = InChild([&, end = end]() -> std::string {
        const std::string skip = nameless ? "" : RefuseNamelessFiles();
        if (!skip.empty()) return skip;
        std::string text;
        RunRanks(end == End::kException ? 1 : 2, [&](int rank, const Communicator& ranks) {
          if (end != End::kException) return TrainUntil(end, options, rank, ranks);
          try {
            TrainUntil(end, options, rank, ranks);
          } catch (const std::runtime_error&) {
            text = "caught";
          }
        });
        return text + (::testing::Test::HasFailure() ? "FAILED" : "");
      });
      if (result.starts_with("skip")) continue;
      EXPECT_EQ(result, expected);
      EXPECT_THAT(folder.files(), IsEmpty());
      EXPECT_EQ(Orphans(), before);
    }
  }
}

// Modes of offload: in memory, on disk, some here and some there, in a window of one.
std::vector<OffloadOptions> Modes(const Folder& folder) {
  std::vector<OffloadOptions> modes(4);
  for (size_t i = 1; i < modes.size(); ++i) modes[i].nvme_paths = {folder.path()};
  modes[2].host.states = 64;
  modes[3].window = 1;
  return modes;
}

TEST(NumericsCases, NUM_34_Offload) {
  const Folder folder;
  RunStages({2}, [&](EngineOptions options, int, const Communicator& ranks) {
    for (const OffloadOptions& mode : Modes(folder)) {
      options.offload = mode;
      for (const int micro_batches : {1, 3}) {
        Toy9::Check(Toy9::Train(Toy9::Options(options), ranks, Toy9::Model(), micro_batches));
      }
    }
  });
}

TEST(NumericsCases, NUM_32_Offload) {
  const Folder folder;
  ModelSpec model = Tensors({10, 10});
  model.parameters[1].group = 1;
  RunStages({2}, [&](EngineOptions options, int, const Communicator& ranks) {
    options.groups = {{.learning_rate = 0.1, .weight_decay = 0.0},
                      {.learning_rate = 1e-3, .weight_decay = 0.1}};
    for (const OffloadOptions& mode : Modes(folder)) {
      options.offload = mode;
      Trainer trainer(options, ranks, model, Constant(1));
      const double expected[2][2] = {{0.9, 0.9989000}, {0.8733663, 0.9985338}};
      for (int step = 0; step < 2; ++step) {
        trainer.Step(Gradients({{step == 0 ? 0.5f : -0.25f}, {step == 0 ? 0.5f : -0.25f}}));
        for (const ParameterId id : {0, 1}) {
          for (const float value : trainer.Read(id)) EXPECT_NEAR(value, expected[step][id], 1e-6);
        }
      }
    }
  });
}

}  // namespace
}  // namespace zerohold::testing
