// Frames: one memory under two addresses, no hole while they move, nothing for children.
#include "src/memory/frame_pool.h"

#include <gmock/gmock.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <thread>

#include "src/memory/address_arena.h"
#include "src/memory/available.h"
#include "tests/src/memory/child.h"
#include "tests/src/memory/pages.h"

namespace zerohold::memory {
namespace {

using base::kFrameBytes;
using base::kPageBytes;

enum class Source { kPrivate, kSegment };

// A pool of `frames` frames, in a segment behind one frame of somebody else's, and an arena of
// twice as many.
struct Fixture {
  Fixture(Source source, int64_t frames) {
    if (source == Source::kPrivate) {
      pool = FramePool::CreatePrivate(frames * kFrameBytes, kKind, &ledger).value();
    } else {
      segment = Segment::Create((frames + 2) * kFrameBytes).value();
      segment->Unlink();
      pool =
          FramePool::CreateInSegment(*segment, {kFrameBytes, frames * kFrameBytes}, kKind, &ledger)
              .value();
    }
    arena.emplace(AddressArena::Reserve(2 * frames * kFrameBytes, kKind, &ledger).value());
  }
  int64_t counted() const { return ledger.Read().Bytes(Tier::kHost, kKind); }

  static constexpr MemoryKind kKind = MemoryKind::kParameters;
  Ledger ledger;
  std::optional<Segment> segment;
  std::unique_ptr<FramePool> pool;
  std::optional<AddressArena> arena;
};

// Another value for each page and `seed`.
void Fill(char* begin, int64_t bytes, int seed) {
  for (int64_t i = 0; i < bytes; i += kPageBytes) {
    std::memset(begin + i, static_cast<int>(i / kPageBytes * 7 + seed), kPageBytes);
  }
}

bool Holds(const char* begin, int64_t bytes, int seed) {
  for (int64_t i = 0; i < bytes; i += 64) {
    if (begin[i] != static_cast<char>(i / kPageBytes * 7 + seed)) return false;
  }
  return true;
}

class FramePoolTest : public testing::TestWithParam<Source> {};

std::string NameOf(const testing::TestParamInfo<Source>& info) {
  return info.param == Source::kPrivate ? "Private" : "Segment";
}

INSTANTIATE_TEST_SUITE_P(Sources, FramePoolTest,
                         testing::Values(Source::kPrivate, Source::kSegment), NameOf);

TEST_P(FramePoolTest, BothViewsSeeTheSameBytes) {
  Fixture the(GetParam(), 4);
  char* const home = the.pool->home();
  char* const address = the.arena->base() + kFrameBytes;
  const Extent extent{kFrameBytes, 2 * kFrameBytes};
  ASSERT_EQ(reinterpret_cast<uintptr_t>(home) % kFrameBytes, 0u);
  EXPECT_TRUE(std::all_of(home, home + the.pool->bytes(), [](char byte) { return byte == 0; }));
  Fill(home, the.pool->bytes(), 1);

  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(Faults(the.arena->base(), the.arena->bytes()));
    ASSERT_TRUE(the.pool->Attach(extent, address).ok());
    EXPECT_EQ(std::memcmp(address, home + extent.offset, extent.bytes), 0);
    EXPECT_TRUE(Faults(the.arena->base(), kFrameBytes));
    EXPECT_TRUE(Faults(address + extent.bytes, 5 * kFrameBytes));
    Fill(address, extent.bytes, 10 + round);
    EXPECT_TRUE(Holds(home + extent.offset, extent.bytes, 10 + round));
    Fill(home + extent.offset, extent.bytes, 20 + round);
    EXPECT_TRUE(Holds(address, extent.bytes, 20 + round));
    ASSERT_TRUE(the.pool->Detach(extent, address).ok());
    EXPECT_TRUE(Holds(home + extent.offset, extent.bytes, 20 + round));
  }
  EXPECT_TRUE(Faults(the.arena->base(), the.arena->bytes()));
  EXPECT_EQ(the.pool->home(), home);
  EXPECT_TRUE(Holds(home, kFrameBytes, 1));  // its neighbour
}

TEST_P(FramePoolTest, AnyExtentGoesUnderAnyAddress) {
  Fixture the(GetParam(), 4);
  for (int frame = 0; frame < 4; ++frame) {
    Fill(the.pool->home() + frame * kFrameBytes, kFrameBytes, frame);
  }
  // In reverse order, and taken away in a third one.
  const auto address_of = [&](int frame) { return the.arena->base() + (7 - frame) * kFrameBytes; };
  const auto extent_of = [](int frame) { return Extent{frame * kFrameBytes, kFrameBytes}; };
  for (const int frame : {2, 0, 3, 1}) {
    ASSERT_TRUE(the.pool->Attach(extent_of(frame), address_of(frame)).ok());
  }
  for (const int frame : {0, 1, 2, 3}) {
    EXPECT_TRUE(Holds(address_of(frame), kFrameBytes, frame));
  }
  for (const int frame : {1, 3, 0, 2}) {
    ASSERT_TRUE(the.pool->Detach(extent_of(frame), address_of(frame)).ok());
    EXPECT_TRUE(Faults(address_of(frame), kFrameBytes));
  }
  // Cut anew.
  ASSERT_TRUE(the.pool->Attach({0, 4 * kFrameBytes}, the.arena->base()).ok());
  for (int frame = 0; frame < 4; ++frame) {
    EXPECT_TRUE(Holds(the.arena->base() + frame * kFrameBytes, kFrameBytes, frame));
  }
}

// The kernel moves page tables, so that nobody takes a page fault for it.
TEST_P(FramePoolTest, EveryViewIsPresent) {
  Fixture the(GetParam(), 8);
  ASSERT_TRUE(the.pool->moves());
  const int64_t before = FaultsTaken();
  std::memset(the.pool->home(), 1, the.pool->bytes());
  ASSERT_TRUE(the.pool->Attach({0, the.pool->bytes()}, the.arena->base()).ok());
  std::memset(the.arena->base(), 2, the.pool->bytes());
  ASSERT_TRUE(the.pool->Detach({0, the.pool->bytes()}, the.arena->base()).ok());
  EXPECT_LT(FaultsTaken() - before, 2048);  // of 8192 pages; a sanitizer takes some of its own
}

TEST_P(FramePoolTest, IsCountedOnce) {
  Fixture the(GetParam(), 3);
  EXPECT_EQ(the.counted(), 3 * kFrameBytes);
  ASSERT_TRUE(the.pool->Attach({0, kFrameBytes}, the.arena->base()).ok());
  EXPECT_EQ(the.counted(), 3 * kFrameBytes);
  ASSERT_TRUE(the.pool->Detach({0, kFrameBytes}, the.arena->base()).ok());
  the.pool.reset();
  EXPECT_EQ(the.counted(), 0);
}

TEST_P(FramePoolTest, EitherMayEndFirst) {
  for (const bool pool_first : {true, false}) {
    Fixture the(GetParam(), 2);
    ASSERT_TRUE(the.pool->Attach({0, kFrameBytes}, the.arena->base()).ok());
    char* const base = the.arena->base();
    char* const home = the.pool->home();
    base[0] = 'x';
    if (pool_first) {
      the.pool.reset();
      EXPECT_EQ(base[0], 'x');
      EXPECT_TRUE(Faults(base + kFrameBytes, 3 * kFrameBytes));
      the.arena.reset();
    } else {
      the.arena.reset();
      EXPECT_EQ(home[0], 'x');
      // The addresses may be somebody else's by now.
      void* const other = mmap(base, kPageBytes, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      ASSERT_EQ(other, base);
      the.pool.reset();
      base[0] = 'y';
      munmap(other, kPageBytes);
    }
    EXPECT_EQ(PresentPages(base, kPageBytes), -1);
    EXPECT_EQ(PresentPages(home, kPageBytes), -1);
    EXPECT_EQ(the.counted(), 0);
  }
}

TEST_P(FramePoolTest, ChildrenDoNotInheritIt) {
  Fixture the(GetParam(), 4);
  const Extent first{0, kFrameBytes};
  const Extent second{2 * kFrameBytes, kFrameBytes};
  char* const base = the.arena->base();
  ASSERT_TRUE(the.pool->Attach(first, base).ok());
  ASSERT_TRUE(the.pool->Attach(second, base + kFrameBytes).ok());
  ASSERT_TRUE(the.pool->Detach(first, base).ok());
  const std::string fault = InChild([&]() -> std::string {
    char* const home = the.pool->home();
    for (int64_t at = 0; at < the.arena->bytes(); at += kPageBytes) {
      if (PresentPages(base + at, kPageBytes) != -1) return "arena inherited";
      if (at < the.pool->bytes() && PresentPages(home + at, kPageBytes) != -1)
        return "home inherited";
    }
    const absl::Status attach = the.pool->Attach(first, base);
    const absl::Status detach = the.pool->Detach(second, base + kFrameBytes);
    for (const absl::Status& status : {attach, detach}) {
      if (status.code() != absl::StatusCode::kFailedPrecondition) return status.ToString();
    }
    // Nor may its end in the child take away what the child has put there.
    if (mmap(home, kPageBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != home) {
      return "addresses taken";
    }
    the.pool.reset();
    return PresentPages(home, kPageBytes) == -1 ? "unmapped by the child" : "";
  });
  EXPECT_EQ(fault, "");
  ASSERT_TRUE(the.pool->Attach(first, base).ok());
  EXPECT_EQ(the.counted(), 4 * kFrameBytes);
}

// Another thread maps and unmaps as fast as it can, whatever fits a frame: had a move left a hole,
// even for a moment, one of its mappings would lie in it, and be destroyed by the next move.
TEST_P(FramePoolTest, NoHoleOpensForOtherThreads) {
  constexpr int kMoves = 10000;
  Fixture the(GetParam(), 2);
  Fill(the.pool->home(), the.pool->bytes(), 5);
  std::atomic<bool> done{false};
  std::atomic<int64_t> mapped{0};
  std::atomic<bool> damaged{false};
  std::string damage;
  std::thread other([&] {
    const char* const begin = the.arena->base();
    const char* const end = begin + the.arena->bytes();
    while (!done && !damaged) {
      const int64_t bytes = mapped % 2 == 0 ? kFrameBytes : kPageBytes;
      void* const got =
          mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (got == MAP_FAILED) continue;
      auto* const volatile_bytes = static_cast<volatile char*>(got);
      if (got >= begin && got < end) damage = "a mapping inside the arena";
      if (volatile_bytes[0] != 0) damage = "a mapping with our bytes";
      volatile_bytes[0] = 'm';
      std::this_thread::yield();
      if (volatile_bytes[0] != 'm') damage = "a mapping destroyed";
      munmap(got, bytes);
      ++mapped;
      damaged = !damage.empty();
    }
  });
  bool whole = true;
  for (int i = 0; (i < kMoves || mapped < 200) && whole && !damaged; ++i) {
    char* const address = the.arena->base() + i % 3 * kFrameBytes;
    const Extent extent{i % 2 * kFrameBytes, kFrameBytes};
    whole = the.pool->Attach(extent, address).ok() &&
            address[i % kFrameBytes] == the.pool->home()[extent.offset + i % kFrameBytes] &&
            the.pool->Detach(extent, address).ok();
  }
  done = true;
  other.join();
  EXPECT_TRUE(whole);
  EXPECT_EQ(damage, "");
  EXPECT_TRUE(Holds(the.pool->home(), the.pool->bytes(), 5));
}

TEST(FramePool, IsRoundedUpToFrames) {
  Ledger ledger;
  const auto pool = FramePool::CreatePrivate(kFrameBytes + 1, Fixture::kKind, &ledger).value();
  EXPECT_EQ(pool->bytes(), 2 * kFrameBytes);
  EXPECT_EQ(ledger.Read().Bytes(Tier::kHost, Fixture::kKind), 2 * kFrameBytes);
}

TEST(FramePool, OfNothingIsLegal) {
  Ledger ledger;
  const auto pool = FramePool::CreatePrivate(0, Fixture::kKind, &ledger).value();
  EXPECT_EQ(pool->home(), nullptr);
  EXPECT_TRUE(pool->moves());
  EXPECT_TRUE(pool->Attach({}, nullptr).ok());
  EXPECT_TRUE(pool->Detach({}, nullptr).ok());
}

TEST(FramePool, RefusesWhatTheNodeHasNotGot) {
  Ledger ledger;
  for (const int64_t bytes : {AvailableMemoryBytes() / 2 * 3, INT64_MAX / 2}) {
    const absl::Status status = FramePool::CreatePrivate(bytes, Fixture::kKind, &ledger).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(std::to_string(bytes)));
  }
  EXPECT_EQ(ledger.Read().Bytes(Tier::kHost, Fixture::kKind), 0);
}

// Peers map the segment themselves and read what a unit's addresses show.
TEST(FramePool, InASegmentIsReadByPeersInPlace) {
  Fixture the(Source::kSegment, 2);
  AddressArena peer =
      AddressArena::Reserve(the.segment->bytes(), MemoryKind::kStaging, &the.ledger).value();
  ASSERT_TRUE(peer.AttachShared(0, the.segment->bytes(), *the.segment, 0).ok());
  std::memset(peer.base(), 'n', kFrameBytes);  // neighbours in the segment
  std::memset(peer.base() + 3 * kFrameBytes, 'n', kFrameBytes);
  the.segment.reset();  // no longer needed
  ASSERT_TRUE(the.pool->Attach({0, 2 * kFrameBytes}, the.arena->base()).ok());
  Fill(the.arena->base(), 2 * kFrameBytes, 3);
  EXPECT_TRUE(Holds(peer.base() + kFrameBytes, 2 * kFrameBytes, 3));
  for (const int64_t neighbour : {int64_t{0}, 3 * kFrameBytes}) {
    EXPECT_EQ(std::count(peer.base() + neighbour, peer.base() + neighbour + kFrameBytes, 'n'),
              kFrameBytes);
  }
}

// From here on mremap answers MREMAP_DONTUNMAP with EINVAL, as kernels before 5.13 do.
bool BecomeAnOldKernel() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mremap, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args[3])),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, MREMAP_DONTUNMAP, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST_P(FramePoolTest, MapsAnewWhereTheKernelDoesNotMove) {
  const std::string fault = InChild([]() -> std::string {
    if (!BecomeAnOldKernel()) return "no seccomp";
    Fixture the(GetParam(), 4);
    if (the.pool->moves()) return "moves";
    Fill(the.pool->home(), the.pool->bytes(), 1);
    const Extent extent{kFrameBytes, 2 * kFrameBytes};
    char* const address = the.arena->base() + kFrameBytes;
    for (int round = 0; round < 3; ++round) {
      if (!the.pool->Attach(extent, address).ok()) return "not attached";
      if (std::memcmp(address, the.pool->home() + extent.offset, extent.bytes) != 0) return "bytes";
      Fill(address, extent.bytes, round);
      if (!the.pool->Detach(extent, address).ok()) return "not detached";
      if (!Faults(address, extent.bytes)) return "does not fault";
      if (PresentPages(address, extent.bytes) == -1) return "a hole";
      if (!Holds(the.pool->home() + extent.offset, extent.bytes, round)) return "not at home";
    }
    return the.counted() == 4 * kFrameBytes ? "" : "counted twice";
  });
  EXPECT_EQ(fault, "");
}

// Every mapping that the kernel allows a process, each another one than its neighbours.
std::vector<void*> TakeAllMappings() {
  std::vector<void*> taken;
  taken.reserve(1 << 20);
  for (int i = 0; taken.size() < taken.capacity(); ++i) {
    void* const page = mmap(nullptr, kPageBytes, i % 2 == 0 ? PROT_READ : PROT_NONE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) break;
    taken.push_back(page);
  }
  return taken;
}

TEST_P(FramePoolTest, SaysThatThereAreTooManyMappings) {
  const std::string fault = InChild([]() -> std::string {
    Fixture the(GetParam(), 4);
    Fill(the.pool->home(), the.pool->bytes(), 1);
    char* const address = the.arena->base() + kFrameBytes;
    const Extent extent{kFrameBytes, kFrameBytes};
    const std::vector<void*> taken = TakeAllMappings();
    const absl::Status status = the.pool->Attach(extent, address);
    for (void* page : taken) munmap(page, kPageBytes);
    if (status.code() != absl::StatusCode::kResourceExhausted) return status.ToString();
    if (status.message().find("vm.max_map_count") == status.message().npos) {
      return status.ToString();
    }
    if (!Faults(the.arena->base(), the.arena->bytes())) return "does not fault";
    if (PresentPages(the.arena->base(), the.arena->bytes()) == -1) return "a hole";
    if (!the.pool->Attach(extent, address).ok()) return "not attached afterwards";
    return Holds(address, kFrameBytes, 1 + 512 * 7) ? "" : "other bytes";
  });
  EXPECT_EQ(fault, "");
}

TEST(FramePoolDeathTest, ReleasedMemoryDiesWhenTouched) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a forked child would always die
  Fixture the(Source::kPrivate, 2);
  volatile char* const address = the.arena->base();
  ASSERT_TRUE(the.pool->Attach({0, kFrameBytes}, the.arena->base()).ok());
  address[7] = 1;
  ASSERT_TRUE(the.pool->Detach({0, kFrameBytes}, the.arena->base()).ok());
  EXPECT_DEATH(address[7] = 1, "");
  EXPECT_DEATH(static_cast<void>(address[7]), "");
}

TEST(FramePoolDeathTest, ChecksItsCaller) {
  Fixture the(Source::kPrivate, 2);
  char* const base = the.arena->base();
  const Extent frame{0, kFrameBytes};
  ASSERT_TRUE(the.pool->Attach(frame, base).ok());
  const auto attach = [&](const Extent& extent, char* address) {
    static_cast<void>(the.pool->Attach(extent, address));
  };
  const auto detach = [&](const Extent& extent, char* address) {
    static_cast<void>(the.pool->Detach(extent, address));
  };
  EXPECT_DEATH(attach(frame, base + kFrameBytes), "check failed");  // already attached
  EXPECT_DEATH(attach({kFrameBytes, 2 * kFrameBytes}, base), "check failed");
  EXPECT_DEATH(attach({kFrameBytes, kFrameBytes}, base + kPageBytes), "check failed");
  EXPECT_DEATH(detach({kFrameBytes, kFrameBytes}, base), "check failed");  // not attached
  EXPECT_DEATH(detach(frame, base + kFrameBytes), "check failed");         // not there
}

}  // namespace
}  // namespace zerohold::memory
