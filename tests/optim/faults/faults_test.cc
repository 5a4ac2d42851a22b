// Whatever a disk does, at whatever moment of a record's life: the training ends with the bits of
// the one without faults, or all ranks are told the same, with tier, folder, offset and record; and
// nothing is left. Fails if a kind of fault has met no transfer of some moment.
//
// ctest runs a share of the schedules; ZEROHOLD_FAULT_SCHEDULES=10000 runs that many.
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <mutex>
#include <thread>

#include "src/base/align.h"
#include "tests/optim/faults/drill.h"

namespace zerohold::faults {
namespace {

namespace fs = std::filesystem;

// Each costs 14 ms of a core; with the thread sanitizer, 25 times as much.
#ifdef __SANITIZE_THREAD__
constexpr int kSchedules = 1500;
#else
constexpr int kSchedules = 3600;
#endif
constexpr double kDeadlineS = 15.0;  // of a training, which takes milliseconds

// splitmix64 (Steele, Lea and Flood 2014): the numbers of a schedule are its own.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  int64_t Below(int64_t n) {
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return static_cast<int64_t>((z ^ (z >> 31)) % static_cast<uint64_t>(n));
  }

 private:
  uint64_t state_;
};

// Everything once more, whoever reads it: what a fault of that kind costs. A flip is none of the
// first four, whatever it hits.
bool IsMended(Harm harm) {
  return harm == Harm::kShort || harm == Harm::kAgain || harm == Harm::kLate ||
         harm == Harm::kFlipPadding;
}

// No run may end well in which this happened. What is fetched for nothing is not looked at, and a
// write that is not done is found by who reads it: gradients of a step that is skipped, and values
// of the trainer's that are in a frame, are written again before anybody does.
bool IsFatal(const Hit& hit) {
  const bool told = hit.harm == Harm::kEio || hit.harm == Harm::kEnospc || hit.harm == Harm::kLost;
  if (told) return true;
  if (hit.moment == Moment::kOther) return false;
  if (hit.harm == Harm::kStale) {
    return hit.moment != Moment::kSpillGradient && hit.moment != Moment::kWriteCopy;
  }
  return !IsMended(hit.harm) && hit.moment != Moment::kFetchDropped;
}

// Whether the status tells of this fault: its code, and tier, folder, offset and record.
bool Blames(const Status& status, const Hit& hit, const Disk& disk, size_t rank) {
  const auto code = hit.harm == Harm::kEnospc ? absl::StatusCode::kResourceExhausted
                    : hit.harm == Harm::kLost ? absl::StatusCode::kUnavailable
                                              : absl::StatusCode::kDataLoss;
  if (IsMended(hit.harm) || status.code() != code) return false;
  const SectionPlace& place = disk.places()[hit.number];
  const std::string record = absl::StrCat("rank ", rank, ": tier nvme: record ", hit.number);
  const std::string& folder = disk.folder(place.file);
  const auto moved = [&](const char* verb) {
    return absl::StrCat(record, ": nvme_paths: ", folder, ": ", verb, " of ", place.bytes(),
                        " bytes at ", place.offset_bytes, ", ");
  };
  const std::string found =
      absl::StrCat(record, " in ", folder, " at offset ", place.offset_bytes, " ");
  return std::ranges::any_of(
      std::array{found, moved("read"), moved("write")},
      [&](const std::string& text) { return absl::StrContains(status.message(), text); });
}

bool BlamesAny(const Status& status, const Drill& drill) {
  for (size_t rank = 0; rank < drill.disks.size(); ++rank) {
    const Disk& disk = *drill.disks[rank];
    for (const Hit& hit : disk.hits()) {
      if (Blames(status, hit, disk, rank)) return true;
    }
  }
  return false;
}

std::string Describe(const Drill& drill) {
  std::string text;
  for (size_t rank = 0; rank < drill.outcomes.size(); ++rank) {
    const Outcome& outcome = drill.outcomes[rank];
    absl::StrAppend(&text, "\n  rank ", rank, ": ", outcome.failed_in, ": ",
                    outcome.failed.ToString(), "\n    then ", outcome.after.ToString(),
                    "\n    at last ", outcome.closed.ToString());
    for (const Hit& hit : drill.disks[rank]->hits()) {
      absl::StrAppend(&text, "\n    ", NameOf(hit.harm), " in ", NameOf(hit.moment), ", record ",
                      hit.number);
    }
  }
  return text;
}

// What is wrong with how it ended; "" for nothing. Under next-forward overlap a late fault is told
// by the next Step or Read, until which the trainer may see parameters that were not updated.
std::string Judge(const Drill& drill, const Drill& expected, bool overlaps) {
  bool fatal = false;
  for (const auto& disk : drill.disks) fatal |= std::ranges::any_of(disk->hits(), IsFatal);
  const Outcome& first = drill.outcomes[0];
  for (size_t rank = 0; rank < drill.outcomes.size(); ++rank) {
    const Outcome& outcome = drill.outcomes[rank];
    const std::vector<uint64_t>& right = expected.outcomes[rank].seen;
    const bool late = overlaps && !outcome.failed.ok();
    const size_t count = late ? outcome.answered : outcome.seen.size();
    if (count > right.size() ||
        !std::equal(right.begin(), right.begin() + count, outcome.seen.begin())) {
      return absl::StrCat("rank ", rank, " saw other bits");
    }
    if (outcome.failed.ok() && outcome.seen.size() < right.size()) return "it saw less";
    if (outcome.failed.ok() && fatal) return "a fault passed silently";
    if (outcome.failed.ok() && !outcome.closed.ok()) return "only Close told";
    if (outcome.failed != first.failed) return "ranks were told different things";
    if (outcome.failed.ok()) continue;
    if (!BlamesAny(outcome.failed, drill)) {
      return "no fault has this code with this tier, folder, offset and record";
    }
    if (outcome.after.ok() || outcome.after != first.after) return "it did not stay failed";
  }
  return "";
}

class Coverage {
 public:
  void Add(const Drill& drill) {
    const std::lock_guard lock(mutex_);
    for (const auto& disk : drill.disks) {
      for (const Hit& hit : disk->hits()) ++hits_[{hit.moment, hit.harm}];
    }
    ++(drill.outcomes[0].failed.ok() ? ended_well_ : told_);
  }

  // Reads fill no disk and are not forgotten; what is written is not looked at, so flips of it are
  // those of the read that follows.
  static bool CanBe(Moment moment, Harm harm) {
    const bool flip =
        harm == Harm::kFlipHeader || harm == Harm::kFlipPayload || harm == Harm::kFlipPadding;
    const bool of_write = harm == Harm::kEnospc || harm == Harm::kStale;
    return Writes(moment) ? !flip : !of_write;
  }

  void Check() {
    int64_t cells = 0;
    int64_t least = -1;
    for (int m = 0; m < kMoments; ++m) {
      for (int h = 0; h < kHarms; ++h) {
        const auto moment = static_cast<Moment>(m);
        const auto harm = static_cast<Harm>(h);
        const int64_t hits = hits_[{moment, harm}];
        EXPECT_EQ(hits > 0, CanBe(moment, harm)) << NameOf(harm) << " in " << NameOf(moment);
        if (!CanBe(moment, harm)) continue;
        ++cells;
        least = least < 0 ? hits : std::min(least, hits);
      }
    }
    std::printf("%lld cells, hit %lld times at least; %lld trainings ended well, %lld were told\n",
                static_cast<long long>(cells), static_cast<long long>(least),
                static_cast<long long>(ended_well_), static_cast<long long>(told_));
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<Moment, Harm>, int64_t> hits_;
  int64_t ended_well_ = 0;
  int64_t told_ = 0;
};

int64_t Entries(const std::string& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator());
}

// What this process has, and what lies about under its name.
struct Belongings {
  explicit Belongings(const std::vector<std::string>& folders)
      : threads(Entries("/proc/self/task")), open_files(Entries("/proc/self/fd")) {
    for (const std::string& folder : folders) files += Entries(folder);
    const std::string own = absl::StrCat("zerohold.", getpid(), ".");
    for (const auto& entry : fs::directory_iterator("/dev/shm")) {
      files += absl::StartsWith(entry.path().filename().string(), own);
    }
  }
  bool operator==(const Belongings&) const = default;
  int64_t threads;
  int64_t open_files;
  int64_t files = 0;
};

class Faults : public ::testing::Test {
 protected:
  Faults() {
    EXPECT_NE(mkdtemp(folder_.data()), nullptr);
    for (const char* name : {"/a", "/b"}) {
      folders_.push_back(folder_ + name);
      fs::create_directory(folders_.back());
    }
    trainings_ = Trainings(folders_);
    for (const Training& training : trainings_) {
      expected_.push_back(RunDrill(training, std::vector<io::FaultSpec>(training.world)));
      for (const Outcome& outcome : expected_.back().outcomes) {
        EXPECT_TRUE(outcome.failed.ok()) << training.name << Describe(expected_.back());
      }
    }
  }
  ~Faults() override { fs::remove_all(folder_); }

  // Five of six schedules: one fault of one kind, at one moment, at any such transfer. The others:
  // some of all kinds, from any transfer on, on any rank.
  std::vector<io::FaultSpec> FaultsOf(int schedule) const;
  std::vector<io::FaultSpec> OneFault(const Drill& expected, int64_t turn, Random& random) const;

  std::string folder_ = ZH_TEST_FOLDER "/faults.XXXXXX";
  std::vector<std::string> folders_;
  std::vector<Training> trainings_;
  std::vector<Drill> expected_;
};

// A fault of a kind at each transfer of a section.
io::FaultSpec SpecOf(Harm harm, const SectionPlace& place) {
  switch (harm) {
    case Harm::kShort:
      return {.short_transfer = 1.0};
    case Harm::kAgain:
      return {.again = 1.0};
    case Harm::kEio:
      return {.eio = 1.0};
    case Harm::kEnospc:
      return {.enospc = 1.0};
    case Harm::kStale:
      return {.stale = 1.0};
    case Harm::kFlipHeader:
      return {.bit_flip = 1.0, .flip_end = kHeaderBytes};
    case Harm::kFlipPadding:
      return {.bit_flip = 1.0, .flip_begin = kHeaderBytes, .flip_end = base::kPageBytes};
    case Harm::kFlipPayload:
      return {.bit_flip = 1.0,
              .flip_begin = base::kPageBytes,
              .flip_end = base::kPageBytes + place.payload_bytes};
    default:
      return {.late = 1.0};
  }
}

// Of all that can happen in this training, what has its turn.
std::vector<io::FaultSpec> Faults::OneFault(const Drill& expected, int64_t turn,
                                            Random& random) const {
  struct Transfer {
    size_t rank;
    size_t index;
  };
  std::map<std::pair<Harm, Moment>, std::vector<Transfer>> all;
  for (size_t rank = 0; rank < expected.disks.size(); ++rank) {
    const std::vector<Begun>& log = expected.disks[rank]->log();
    for (size_t i = 0; i < log.size(); ++i) {
      for (int h = 0; h < kHarms; ++h) {
        const auto harm = static_cast<Harm>(h);
        const Moment moment = log[i].moment;
        if (moment == Moment::kOther || !Coverage::CanBe(moment, harm)) continue;
        all[{harm, moment}].push_back({rank, i});
      }
    }
  }
  const auto& [what, where] = *std::next(all.begin(), turn % std::ssize(all));
  const auto [rank, index] = where[random.Below(std::ssize(where))];
  const Disk& disk = *expected.disks[rank];
  std::vector<io::FaultSpec> specs(expected.disks.size());
  specs[rank] = SpecOf(what.first, disk.places()[disk.log()[index].number]);
  specs[rank].first = specs[rank].last = static_cast<int64_t>(index);
  return specs;
}

std::vector<io::FaultSpec> Faults::FaultsOf(int schedule) const {
  Random random(static_cast<uint64_t>(schedule));
  const Drill& expected = expected_[schedule % expected_.size()];
  const int64_t turn = schedule / std::ssize(expected_);
  std::vector<io::FaultSpec> specs(expected.disks.size());
  if (turn % 6 < 5) {
    specs = OneFault(expected, turn / 6 * 5 + turn % 6, random);
  } else {
    for (io::FaultSpec& spec : specs) {
      if (random.Below(2) == 0) continue;
      const double often[] = {0.0, 0.02, 0.2};
      spec = {.short_transfer = often[random.Below(3)],
              .again = often[random.Below(3)],
              .eio = often[random.Below(2)],
              .enospc = often[random.Below(2)],
              .bit_flip = often[random.Below(2)],
              .stale = often[random.Below(2)],
              .late = often[random.Below(3)]};
      spec.first = random.Below(100);
    }
  }
  for (io::FaultSpec& spec : specs) spec.seed = random.Below(1 << 30);
  return specs;
}

// A disk that hangs for good, from the beginning or some moment on: that takes half the time after
// which peers give up waiting, and not once for every record.
TEST_F(Faults, ADiskThatHangsIsToldToAllRanks) {
  constexpr double kTimeoutS = 6.0;
  constexpr int kEach = 3;
  const auto hang = [&](size_t which, int turn) {
    Training training = trainings_[which];
    training.options.communication_timeout_s = kTimeoutS;
    const Drill& expected = expected_[which];
    Random random(100 * which + turn);
    const int64_t rank = random.Below(training.world);
    std::vector<io::FaultSpec> specs(training.world);
    const int64_t transfers = std::ssize(expected.disks[rank]->log());
    specs[rank] = {.lost = 1.0,
                   .first = turn == 0 ? 0 : (turn * transfers + random.Below(transfers)) / kEach};
    const auto begin = std::chrono::steady_clock::now();
    const Drill drill = RunDrill(training, specs);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const std::string wrong = took.count() > 3 * kTimeoutS
                                  ? absl::StrCat("it took ", took.count(), " s")
                                  : Judge(drill, expected, training.options.overlap_next_forward);
    EXPECT_EQ(wrong, "") << training.name << ", from transfer " << specs[rank].first << " of "
                         << transfers << " on" << Describe(drill);
  };
  std::vector<std::thread> workers;
  for (size_t which = 0; which < trainings_.size(); ++which) {
    workers.emplace_back([&, which] {
      for (int turn = 0; turn < kEach; ++turn) hang(which, turn);
    });
  }
  for (std::thread& worker : workers) worker.join();
}

TEST_F(Faults, EndInTheRightBitsOrAreToldToAllRanks) {
  const char* const asked = std::getenv("ZEROHOLD_FAULT_SCHEDULES");
  const int schedules = asked == nullptr ? kSchedules : std::atoi(asked);
  const Belongings before(folders_);
  Coverage coverage;
  std::atomic<int> next = 0;
  const auto work = [&] {
    for (int schedule; (schedule = next++) < schedules && !HasFatalFailure();) {
      const size_t which = schedule % trainings_.size();
      const auto begin = std::chrono::steady_clock::now();
      const Drill drill = RunDrill(trainings_[which], FaultsOf(schedule));
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      const std::string wrong =
          took.count() > kDeadlineS
              ? "it took too long"
              : Judge(drill, expected_[which], trainings_[which].options.overlap_next_forward);
      if (!wrong.empty()) {
        ADD_FAILURE() << "schedule " << schedule << ", " << trainings_[which].name << ": " << wrong
                      << Describe(drill);
      }
      coverage.Add(drill);
    }
  };
  std::vector<std::thread> workers;
  for (int i = 0; i < 3; ++i) workers.emplace_back(work);
  for (std::thread& worker : workers) worker.join();
  if (schedules >= kSchedules) coverage.Check();  // fewer need not hit all
  EXPECT_TRUE(Belongings(folders_) == before) << "something is left";
}

}  // namespace
}  // namespace zerohold::faults
