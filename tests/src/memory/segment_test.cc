// The node's shared segment: reserved in full or refused in words, seen by all, gone by itself.
#include "src/memory/segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sched.h>
#include <sys/inotify.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <memory>
#include <vector>

#include "src/memory/address_arena.h"
#include "src/memory/available.h"
#include "src/memory/frame_pool.h"
#include "tests/src/memory/child.h"

namespace zerohold::memory {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr char kSkip[] = "skip: ";

// The segment's bytes, mapped.
AddressArena Map(const Segment& segment, Ledger* ledger) {
  AddressArena arena = AddressArena::Reserve(segment.bytes(), MemoryKind::kStaging, ledger).value();
  EXPECT_TRUE(arena.AttachShared(0, segment.bytes(), segment, 0).ok());
  return arena;
}

std::string PathOf(const Segment& segment) { return segment.place().path.data(); }

// How many names of /dev/shm `body` makes, however short their lives.
int NamesMadeBy(const std::function<void()>& body) {
  const std::string own = "zerohold." + std::to_string(getpid()) + ".";
  const int watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
  inotify_add_watch(watch, "/dev/shm", IN_CREATE | IN_MOVED_TO);
  body();
  int names = 0;
  alignas(inotify_event) char events[65536];
  for (ssize_t bytes; (bytes = read(watch, events, sizeof(events))) > 0;) {
    for (const char* at = events; at < events + bytes;) {
      const auto* event = reinterpret_cast<const inotify_event*>(at);
      if (std::string(event->name).starts_with(own)) ++names;
      at += sizeof(inotify_event) + event->len;
    }
  }
  close(watch);
  return names;
}

TEST(Segment, IsPrivateToTheUserReservedAndWithoutAName) {
  const int names = NamesMadeBy([] {
    const Segment segment = Segment::Create(kMiB + 1).value();
    EXPECT_EQ(segment.bytes(), kMiB + 4096);
    struct stat file = {}, mount = {};
    ASSERT_EQ(stat(PathOf(segment).c_str(), &file), 0);
    ASSERT_EQ(stat("/dev/shm", &mount), 0);
    EXPECT_EQ(file.st_dev, mount.st_dev);  // so that its limit holds
    EXPECT_EQ(file.st_nlink, 0u);
    EXPECT_EQ(file.st_mode & 0777, 0600u);
    EXPECT_EQ(file.st_blocks * 512, segment.bytes());  // not only promised
  });
  EXPECT_EQ(names, 0);
}

TEST(Segment, WithANameIsEmptyAndGoneAfterUnlink) {
  std::string path;
  const int names = NamesMadeBy([&] {
    Segment segment = Segment::CreateNamed().value();
    path = PathOf(segment);
    struct stat file = {};
    ASSERT_EQ(stat(path.c_str(), &file), 0);
    EXPECT_EQ(file.st_mode & 0777, 0600u);
    EXPECT_EQ(file.st_size, 0);
    EXPECT_DEATH({ (void)segment.Reserve(4096); }, "namer");
    segment.Unlink();
    EXPECT_FALSE(std::filesystem::exists(path));
    segment.Unlink();
    EXPECT_TRUE(segment.Reserve(5000).ok());
    EXPECT_EQ(segment.bytes(), 8192);
  });
  EXPECT_THAT(path, testing::StartsWith("/dev/shm/zerohold."));
  EXPECT_EQ(names, 1);
}

TEST(Segment, TakesItsNameAlong) {
  std::string path;
  {
    Segment first = Segment::CreateNamed().value();
    path = PathOf(first);
    Segment second = std::move(first);
    EXPECT_TRUE(std::filesystem::exists(path));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Segment, OfNothingIsLegal) {
  const Segment segment = Segment::Create(0).value();
  EXPECT_EQ(segment.bytes(), 0);
  EXPECT_EQ(Segment::Open(segment.place()).value().bytes(), 0);
}

TEST(Segment, NamesDiffer) {
  const Segment first = Segment::CreateNamed().value();
  const Segment second = Segment::CreateNamed().value();
  EXPECT_NE(PathOf(first), PathOf(second));
}

// A path that leads to another file by now, or leads there for this process alone.
TEST(Segment, AnotherFileIsNotOpened) {
  const Segment one = Segment::Create(4096).value(), two = Segment::Create(4096).value();
  SegmentPlace place = one.place();
  EXPECT_TRUE(Segment::Open(place).ok());
  place.path = two.place().path;
  const absl::Status status = Segment::Open(place).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(PathOf(two)));
}

// Not even by the programs that this one starts.
TEST(Segment, IsInheritedByNoProgram) {
  const Segment segment = Segment::Create(4096).value();
  const Segment opened = Segment::Open(segment.place()).value();
  for (const Segment* each : {&segment, &opened}) {
    const std::string descriptor = PathOf(*each).substr(PathOf(*each).rfind('/') + 1);
    EXPECT_EQ(fcntl(std::stoi(descriptor), F_GETFD), FD_CLOEXEC);
  }
}

TEST(Segment, ProcessesSeeEachOthersBytes) {
  Ledger ledger;
  Segment segment = Segment::Create(8 * kMiB).value();
  const AddressArena mine = Map(segment, &ledger);
  std::strcpy(mine.base() + 4 * kMiB, "from the parent");
  const std::string heard = InChild([place = segment.place()]() -> std::string {
    Ledger ledger;
    Segment opened = Segment::Open(place).value();
    AddressArena part = AddressArena::Reserve(kMiB, MemoryKind::kStaging, &ledger).value();
    if (!part.AttachShared(0, kMiB, opened, 4 * kMiB).ok()) return "not attached";
    std::string text = part.base();
    std::strcpy(part.base() + 4096, "from the child");
    return text;
  });
  EXPECT_EQ(heard, "from the parent");
  EXPECT_STREQ(mine.base() + 4 * kMiB + 4096, "from the child");
}

// A forked data loader has a copy of the handle; its end is not the segment's.
TEST(Segment, AChildsCopyLeavesTheName) {
  auto segment = std::make_unique<Segment>(Segment::CreateNamed().value());
  EXPECT_EQ(InChild([&] {
              segment.reset();
              return std::string();
            }),
            "");
  EXPECT_TRUE(std::filesystem::exists(PathOf(*segment)));
}

TEST(Segment, RefusesMoreThanTheNodesMemory) {
  const int64_t bytes = AvailableMemoryBytes() / 2 * 3;
  const absl::Status status = Segment::Create(bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr(std::to_string(bytes)));
}

// Runs `body` where /dev/shm is a mount of its own, which nobody else sees.
std::string WithSharedMemoryMount(unsigned long flags, const char* options,
                                  const std::function<std::string()>& body) {
  return InChild([&]() -> std::string {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", flags, options) != 0) {
      return kSkip + std::string("cannot mount a small /dev/shm here: ") + std::strerror(errno);
    }
    return body();
  });
}

TEST(SharedMemoryMount, TellsMountsApart) {
  const uint64_t mine = SharedMemoryMount();
  EXPECT_EQ(InChild([] { return std::to_string(SharedMemoryMount()); }), std::to_string(mine));
  const std::string other =
      WithSharedMemoryMount(0, "size=1m", [] { return std::to_string(SharedMemoryMount()); });
  if (other.starts_with(kSkip)) GTEST_SKIP() << other;
  EXPECT_NE(other, std::to_string(mine));
}

// A limit of files smaller than the segment, or than frames without one: refused, no signal.
TEST(Segment, ALimitOfFilesIsToldBeforeItKills) {
  const std::string result = InChild([] {
    const rlimit limit = {kMiB, kMiB};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return std::string("no limit");
    Ledger ledger;
    return std::string(Segment::Create(4 * kMiB).status().message()) + "\n" +
           std::string(
               FramePool::CreatePrivate(4 * kMiB, MemoryKind::kFrames, &ledger).status().message());
  });
  EXPECT_THAT(result, ::testing::HasSubstr("shared memory: asked 4194304 bytes"));
  EXPECT_THAT(result, ::testing::HasSubstr("frames: asked 4194304 bytes"));
  EXPECT_EQ(std::ranges::count(result, '`'), 4) << result;  // each names `ulimit -f`
}

// A mount smaller than the segment: refused in words with both sizes, no signal, nothing left.
TEST(OffloadCases, OFF_14) {
  const std::string result = WithSharedMemoryMount(0, "size=64m", [&]() -> std::string {
    const absl::Status status = Segment::Create(128 * kMiB).status();
    if (status.code() != absl::StatusCode::kResourceExhausted) return status.ToString();
    if (!std::filesystem::is_empty("/dev/shm")) return "a segment was left";
    struct statvfs left = {};
    if (statvfs("/dev/shm", &left) != 0 || left.f_bfree != left.f_blocks) return "memory was left";
    // What fits is there in full, and what is left is told right afterwards.
    Ledger ledger;
    const Segment half = Segment::Create(32 * kMiB).value();
    const AddressArena arena = Map(half, &ledger);
    std::memset(arena.base(), 1, half.bytes());
    return std::string(status.message()) + "\n" +
           std::string(Segment::Create(48 * kMiB).status().message());
  });
  if (result.starts_with(kSkip)) GTEST_SKIP() << result;
  EXPECT_EQ(
      result,
      "shared memory: asked 134217728 bytes, free 67108864 bytes on /dev/shm (No space left on "
      "device); enlarge it with `mount -o remount,size=134217728 /dev/shm`, or in a container "
      "with --shm-size=134217728\n"
      "shared memory: asked 50331648 bytes, free 33554432 bytes on /dev/shm (No space left on "
      "device); enlarge it with `mount -o remount,size=83886080 /dev/shm`, or in a container "
      "with --shm-size=83886080");
}

TEST(Segment, SaysPromptlyThatNoNameCanBeMade) {
  const std::string result = WithSharedMemoryMount(
      MS_RDONLY, "size=1m", [] { return std::string(Segment::Create(4096).status().message()); });
  if (result.starts_with(kSkip)) GTEST_SKIP() << result;
  EXPECT_THAT(result, testing::HasSubstr("cannot make /dev/shm/zerohold."));
}

}  // namespace
}  // namespace zerohold::memory
