// Which nodes staging goes to, as a rule; and what the kernel says to it, here and in a container.
#include "offload/staging/numa.h"

#include <gmock/gmock.h>
#include <numa.h>
#include <numaif.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <cerrno>
#include <cstring>

#include "tests/offload/io/refuse_calls.h"
#include "tests/src/memory/child.h"

namespace zerohold::staging {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(ChooseNodes, TheNearOneWhereItHasTheRoom) {
  const NumaNode nodes[] = {{0, 900 * kMiB, false}, {1, 100 * kMiB, true}};
  EXPECT_THAT(ChooseNodes(nodes, 64 * kMiB).nodes, ElementsAre(1));
  EXPECT_THAT(ChooseNodes(nodes, 100 * kMiB).nodes, ElementsAre(1));
}

TEST(ChooseNodes, AllByTurnsWhereTheNearOnesCannotHoldIt) {
  const NumaNode nodes[] = {{0, 900 * kMiB, false}, {1, 100 * kMiB, true}, {3, 900 * kMiB, false}};
  EXPECT_THAT(ChooseNodes(nodes, 100 * kMiB + 1).nodes, ElementsAre(0, 1, 3));
  const NumaNode far[] = {{0, 900 * kMiB, false}, {1, 900 * kMiB, false}};
  EXPECT_THAT(ChooseNodes(far, kMiB).nodes, ElementsAre(0, 1)) << "no core has memory near it";
}

TEST(ChooseNodes, TheNearOnesByTurnsEachWithRoomForItsPart) {
  const NumaNode nodes[] = {{0, 40 * kMiB, true}, {1, 90 * kMiB, true}, {2, 900 * kMiB, false}};
  EXPECT_THAT(ChooseNodes(nodes, 64 * kMiB).nodes, ElementsAre(0, 1));
  EXPECT_THAT(ChooseNodes(nodes, 88 * kMiB).nodes, ElementsAre(1)) << "44 MiB are too much for 0";
  EXPECT_THAT(ChooseNodes(nodes, 120 * kMiB).nodes, ElementsAre(0, 1, 2));
}

TEST(ChooseNodes, NoPolicyWithoutAChoice) {
  const NumaNode one[] = {{0, kMiB, true}};
  EXPECT_THAT(ChooseNodes(one, kMiB).nodes, IsEmpty());
  EXPECT_THAT(ChooseNodes({}, kMiB).nodes, IsEmpty());
}

struct Mapping {
  Mapping()
      : bytes(static_cast<std::byte*>(
                  mmap(nullptr, kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
              kMiB) {
    std::memset(bytes.data(), 7, kMiB);
  }
  ~Mapping() { munmap(bytes.data(), kMiB); }
  std::span<std::byte> bytes;
};

TEST(PlaceOnNodes, TheKernelHasThePolicy) {
  const std::vector<NumaNode> nodes = NodesOfThisProcess();
  if (nodes.empty()) GTEST_SKIP() << "this kernel knows no NUMA";
  EXPECT_GT(nodes[0].free_bytes, 0);
  EXPECT_TRUE(std::ranges::any_of(nodes, &NumaNode::near));
  Mapping memory;
  const absl::Status placed = PlaceOnNodes(memory.bytes, {{nodes.back().number}});
  if (absl::IsUnavailable(placed)) GTEST_SKIP() << placed;
  ASSERT_TRUE(placed.ok()) << placed;
  int mode = -1;
  bitmask* const mask = numa_allocate_nodemask();
  ASSERT_EQ(get_mempolicy(&mode, mask->maskp, mask->size + 1, memory.bytes.data(), MPOL_F_ADDR), 0);
  EXPECT_EQ(mode, MPOL_PREFERRED);
  EXPECT_TRUE(numa_bitmask_isbitset(mask, static_cast<unsigned>(nodes.back().number)));
  numa_free_nodemask(mask);
  EXPECT_EQ(memory.bytes[kMiB - 1], std::byte{7});
  EXPECT_TRUE(PlaceNear(memory.bytes).ok());
}

TEST(PlaceOnNodes, ARefusalIsToldAndLeavesTheMemory) {
  const std::string outcome = memory::InChild([]() -> std::string {
    const std::string skip = io::RefuseCall(SYS_mbind, EPERM);
    if (!skip.empty()) return skip;
    Mapping memory;
    const absl::Status refused = PlaceOnNodes(memory.bytes, {{0}});
    if (memory.bytes[0] != std::byte{7}) return "the bytes are gone";
    return std::string(refused.message());
  });
  if (outcome.starts_with("skip")) GTEST_SKIP() << outcome;
  EXPECT_THAT(outcome, testing::HasSubstr("1048576 bytes of staging memory on NUMA node 0"));
  EXPECT_THAT(outcome, testing::HasSubstr("Operation not permitted"));
}

}  // namespace
}  // namespace zerohold::staging
