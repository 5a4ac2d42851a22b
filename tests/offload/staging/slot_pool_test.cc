// A slot is lent once at a time, and comes back once, wherever its lease has gone.
#include "offload/staging/slot_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/offload/io/block_memory.h"

namespace zerohold::staging {
namespace {

using io::BlockMemory;
using io::kBlock;

// As many as there are, in the order of their addresses.
std::vector<Lease> LeaseAll(SlotPool& pool) {
  std::vector<Lease> leases;
  while (std::optional<Lease> lease = pool.TryLease()) leases.push_back(*std::move(lease));
  std::ranges::sort(leases, {}, [](const Lease& lease) { return lease.data(); });
  return leases;
}

TEST(SlotPool, CutsAsManySlotsAsFit) {
  BlockMemory memory(7);
  SlotPool pool(memory.all(), 2 * kBlock);
  EXPECT_EQ(pool.slots(), 3);
  const std::vector<Lease> leases = LeaseAll(pool);
  ASSERT_EQ(leases.size(), 3);
  for (int slot = 0; slot < 3; ++slot) EXPECT_EQ(leases[slot].data(), memory.block(2 * slot));
  EXPECT_EQ(pool.free_slots(), 0);
}

TEST(SlotPool, WhatComesBackIsLentAgain) {
  BlockMemory memory(3);
  SlotPool pool(memory.all(), kBlock);
  std::vector<Lease> leases = LeaseAll(pool);
  EXPECT_FALSE(pool.TryLease().has_value());
  for (const int slot : {2, 0, 1}) {
    leases[slot].Release();
    EXPECT_FALSE(leases[slot]);
    EXPECT_EQ(pool.free_slots(), 1);
    leases[slot].Release();  // it has nothing any more
    EXPECT_EQ(pool.free_slots(), 1);
    leases[slot] = *pool.TryLease();
    EXPECT_EQ(leases[slot].data(), memory.block(slot));
  }
}

TEST(SlotPool, ALeaseThatMovesHoldsItsSlot) {
  BlockMemory memory(2);
  SlotPool pool(memory.all(), kBlock);
  Lease first = *pool.TryLease();
  std::byte* const slot = first.data();
  Lease second = std::move(first);
  EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): moved from is empty
  EXPECT_EQ(second.data(), slot);
  EXPECT_EQ(pool.free_slots(), 1);
  // Over one that holds another slot, which goes back.
  Lease other = *pool.TryLease();
  EXPECT_EQ(pool.free_slots(), 0);
  other = std::move(second);
  EXPECT_EQ(other.data(), slot);
  EXPECT_EQ(pool.free_slots(), 1);
  {
    const Lease last = std::move(other);
    EXPECT_EQ(pool.free_slots(), 1);
  }
  EXPECT_EQ(pool.free_slots(), 2);
}

TEST(SlotPoolDeathTest, RefusesWhatBreaksIt) {
  BlockMemory memory(2);
  for (const int64_t slot_bytes : {kBlock / 2, kBlock + 1}) {
    EXPECT_DEATH(SlotPool(memory.all(), slot_bytes), "slot_bytes");
  }
  EXPECT_DEATH(
      {
        Lease lease;
        SlotPool pool(memory.all(), kBlock);
        lease = *pool.TryLease();
      },
      "free_slots");
}

}  // namespace
}  // namespace zerohold::staging
