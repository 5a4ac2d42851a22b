// Ledger, buffers and arenas: what is there, what is counted, what faults, what children get.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <vector>

#include "src/base/align.h"
#include "src/memory/address_arena.h"
#include "src/memory/available.h"
#include "src/memory/host_buffer.h"
#include "tests/src/memory/child.h"
#include "tests/src/memory/pages.h"

namespace zerohold::memory {
namespace {

using base::kPageBytes;

constexpr int64_t kHuge = int64_t{2} << 20;
constexpr int64_t kManyBytes = int64_t{1} << 38;  // more memory than the machines of tests have

int64_t Counted(const Ledger& ledger, MemoryKind kind) {
  return ledger.Read().Bytes(Tier::kHost, kind);
}

TEST(Ledger, AddsUpOverThreads) {
  Ledger ledger;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 1000; ++j) ledger.Add(Tier::kNvme, MemoryKind::kMoment2, 3);
      for (int j = 0; j < 1000; ++j) ledger.Add(Tier::kNvme, MemoryKind::kMoment2, -2);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ledger.Read().Bytes(Tier::kNvme, MemoryKind::kMoment2), 4000);
  EXPECT_EQ(ledger.Read().ModelBytes(), 4000);
}

TEST(HostBuffer, IsZeroedPresentAlignedAndCounted) {
  Ledger ledger;
  for (const int64_t bytes : {int64_t{1}, kPageBytes, 3 * kHuge + 5}) {
    const HostBuffer buffer = HostBuffer::Allocate(bytes, MemoryKind::kMaster, &ledger).value();
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % kHuge, 0u);
    EXPECT_EQ(PresentPages(buffer.data(), bytes), base::CeilDiv(bytes, kPageBytes));
    EXPECT_EQ(Counted(ledger, MemoryKind::kMaster), bytes);
    const auto* bytes_in = static_cast<const char*>(buffer.data());
    EXPECT_EQ(std::count(bytes_in, bytes_in + bytes, 0), bytes);
  }
  EXPECT_EQ(Counted(ledger, MemoryKind::kMaster), 0);
}

TEST(HostBuffer, OfNothingIsLegal) {
  Ledger ledger;
  const HostBuffer buffer = HostBuffer::Allocate(0, MemoryKind::kStaging, &ledger).value();
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_EQ(buffer.bytes(), 0);
}

TEST(HostBuffer, MovesWithItsMemory) {
  Ledger ledger;
  HostBuffer first = HostBuffer::Allocate(100, MemoryKind::kStaging, &ledger).value();
  static_cast<char*>(first.data())[99] = 'x';
  HostBuffer second = std::move(first);
  HostBuffer third;
  third = std::move(second);
  EXPECT_EQ(static_cast<char*>(third.data())[99], 'x');
  EXPECT_EQ(Counted(ledger, MemoryKind::kStaging), 100);
  third = HostBuffer();
}

TEST(HostBuffer, RefusesWhatTheNodeHasNotGot) {
  Ledger ledger;
  ASSERT_GT(AvailableMemoryBytes(), 0);
  // The first is less than the kernel would promise, and kill for later.
  for (const int64_t bytes : {AvailableMemoryBytes() / 2 * 3, int64_t{1} << 45, INT64_MAX / 2}) {
    const absl::Status status = HostBuffer::Allocate(bytes, MemoryKind::kMaster, &ledger).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(std::to_string(bytes)));
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("available"));
  }
  EXPECT_EQ(Counted(ledger, MemoryKind::kMaster), 0);
}

TEST(AddressArena, ReservesAddressesAlone) {
  Ledger ledger;
  const AddressArena arena =
      AddressArena::Reserve(kManyBytes, MemoryKind::kParameters, &ledger).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.base()) % kHuge, 0u);
  EXPECT_EQ(arena.bytes(), kManyBytes);
  EXPECT_EQ(PresentPages(arena.base(), 16 * kPageBytes), 0);
  EXPECT_EQ(Counted(ledger, MemoryKind::kParameters), 0);
}

TEST(AddressArenaDeathTest, FaultsWhereNothingIsAttached) {
  // A forked child has not got the arena, and would always die.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  // The child makes the arena itself: a forked one would not even have the range.
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  Ledger ledger;
  AddressArena arena =
      AddressArena::Reserve(4 * kPageBytes, MemoryKind::kParameters, &ledger).value();
  ASSERT_TRUE(arena.AttachPrivate(kPageBytes, kPageBytes + 1).ok());
  volatile char* bytes = arena.base();
  bytes[kPageBytes] = 1;
  bytes[3 * kPageBytes - 1] = 1;  // attached in whole pages
  EXPECT_EQ(Counted(ledger, MemoryKind::kParameters), kPageBytes + 1);
  EXPECT_DEATH(bytes[kPageBytes - 1] = 1, "");
  EXPECT_DEATH(bytes[3 * kPageBytes] = 1, "");
  EXPECT_DEATH(static_cast<void>(bytes[0]), "");
}

TEST(AddressArena, ChildrenDoNotInheritIt) {
  Ledger ledger;
  auto arena = std::make_unique<AddressArena>(
      AddressArena::Reserve(4 * kHuge, MemoryKind::kParameters, &ledger).value());
  Segment segment = Segment::Create(kHuge).value();
  segment.Unlink();
  ASSERT_TRUE(arena->AttachPrivate(0, kHuge).ok());
  ASSERT_TRUE(arena->AttachShared(kHuge, kHuge, segment, 0).ok());
  const std::string fault = InChild([&]() -> std::string {
    char* base = arena->base();
    for (int64_t offset = 0; offset < arena->bytes(); offset += kHuge) {
      if (PresentPages(base + offset, kHuge) != -1 || errno != ENOMEM) return "range inherited";
    }
    // Nor may its end in the child take away what the child has put there.
    if (mmap(base, kPageBytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != base) {
      return "addresses taken";
    }
    arena.reset();
    return PresentPages(base, kPageBytes) == -1 ? "unmapped by the child" : "";
  });
  EXPECT_EQ(fault, "");
  EXPECT_EQ(Counted(ledger, MemoryKind::kParameters), 2 * kHuge);
}

TEST(AddressArena, OfNothingIsLegal) {
  Ledger ledger;
  AddressArena arena = AddressArena::Reserve(0, MemoryKind::kGradients, &ledger).value();
  EXPECT_EQ(arena.base(), nullptr);
  EXPECT_TRUE(arena.AttachPrivate(0, 0).ok());
}

TEST(AddressArenaDeathTest, RefusesRangesOutside) {
  Ledger ledger;
  AddressArena arena = AddressArena::Reserve(kPageBytes, MemoryKind::kGradients, &ledger).value();
  EXPECT_DEATH(static_cast<void>(arena.AttachPrivate(0, kPageBytes + 1)), "check failed");
  EXPECT_DEATH(static_cast<void>(arena.AttachPrivate(1, 1)), "check failed");
}

}  // namespace
}  // namespace zerohold::memory
