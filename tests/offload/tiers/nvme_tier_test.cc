// Records over a backend in memory: what was stored comes back, and what is not what was stored
// last is told by record, folder and offset.
#include "offload/tiers/nvme_tier.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>

#include "offload/io/backends.h"
#include "offload/io/completion_queue.h"
#include "offload/io/disk_rate.h"
#include "src/memory/host_buffer.h"
#include "tests/offload/io/block_memory.h"
#include "tests/src/memory/child.h"

namespace zerohold::tiers {
namespace {

using io::BlockMemory;
using io::kBlock;
using testing::AllOf;
using testing::HasSubstr;

const std::string kFolder = ZH_TEST_FOLDER;

NvmeTier::Settings Settings(std::vector<int64_t> payload_bytes) {
  NvmeTier::Settings settings;
  settings.folders = {kFolder};
  settings.payload_bytes = std::move(payload_bytes);
  settings.backend = &io::CreateMemoryBackend;
  settings.notice = [](const std::string&) {};
  return settings;
}

std::unique_ptr<NvmeTier> Create(const NvmeTier::Settings& settings) {
  auto tier = NvmeTier::Create(settings);
  EXPECT_TRUE(tier.ok()) << tier.status();
  return *std::move(tier);
}

using Verb = void (NvmeTier::*)(int64_t, std::byte*, NvmeTier::Done, void*);

// Blocking.
absl::Status Move(NvmeTier& tier, Verb verb, int64_t record, std::byte* slot) {
  std::promise<absl::Status> moved;
  const auto done = [](void* context, absl::Status status) {
    static_cast<std::promise<absl::Status>*>(context)->set_value(std::move(status));
  };
  (tier.*verb)(record, slot, done, &moved);
  return moved.get_future().get();
}

void Fetch(NvmeTier& tier, int64_t record, std::byte* slot) {
  EXPECT_TRUE(Move(tier, &NvmeTier::Fetch, record, slot).ok());
}

// As the next version, all bytes of the payload the same.
void Store(NvmeTier& tier, int64_t record, BlockMemory& slot, int64_t payload_bytes, int value) {
  std::fill_n(NvmeTier::Payload(slot.block(0)), payload_bytes, static_cast<std::byte>(value));
  tier.Seal(record, slot.block(0));
  EXPECT_TRUE(Move(tier, &NvmeTier::Store, record, slot.block(0)).ok());
}

void ExpectPayload(BlockMemory& slot, int64_t payload_bytes, int value) {
  const std::byte* const payload = NvmeTier::Payload(slot.block(0));
  EXPECT_EQ(std::count(payload, payload + payload_bytes, static_cast<std::byte>(value)),
            payload_bytes);
}

// What Check has against the slot.
void ExpectLost(const NvmeTier& tier, int64_t record, BlockMemory& slot, int64_t offset,
                const std::string& why) {
  const absl::Status status = tier.Check(record, slot.block(0));
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr(absl::StrCat("record ", record, " in ", kFolder, " at offset ", offset)),
            HasSubstr(why)));
}

TEST(NvmeTier, ASlotHoldsAHeaderAndTheLongestPayload) {
  EXPECT_EQ(NvmeTier::SlotBytes({}), kBlock);
  const std::pair<int64_t, int64_t> cases[] = {{1, 2}, {kBlock, 2}, {kBlock + 1, 3}};
  for (const auto& [longest, blocks] : cases) {
    const int64_t payload_bytes[] = {1, longest, 1};
    EXPECT_EQ(NvmeTier::SlotBytes(payload_bytes), blocks * kBlock) << longest;
  }
}

TEST(NvmeTier, WhatWasStoredComesBack) {
  const std::vector<int64_t> payload_bytes = {100, 3 * kBlock, 1, kBlock, 2 * kBlock + 1};
  const auto tier = Create(Settings(payload_bytes));
  BlockMemory slot(4);
  EXPECT_EQ(tier->file_bytes(), (2 + 4 + 2 + 2 + 4) * kBlock);
  for (int round = 1; round <= 2; ++round) {
    for (int64_t record = 0; record < std::ssize(payload_bytes); ++record) {
      Store(*tier, record, slot, payload_bytes[record], static_cast<int>(10 * round + record));
    }
    for (int64_t record = std::ssize(payload_bytes) - 1; record >= 0; --record) {
      Fetch(*tier, record, slot.block(0));
      EXPECT_TRUE(tier->Check(record, slot.block(0)).ok());
      ExpectPayload(slot, payload_bytes[record], static_cast<int>(10 * round + record));
    }
  }
  EXPECT_EQ(tier->counters().read_bytes, 2 * tier->file_bytes());
  EXPECT_EQ(tier->counters().written_bytes, 2 * tier->file_bytes());
}

TEST(NvmeTier, WhatWasNeverStoredIsZeroAndNotRead) {
  const auto tier = Create(Settings({100, 100}));
  BlockMemory slot(2);
  Store(*tier, 0, slot, 100, 7);
  Fetch(*tier, 1, slot.block(0));
  ExpectPayload(slot, 100, 0);
  EXPECT_TRUE(tier->Check(1, slot.block(0)).ok());
  EXPECT_EQ(tier->counters().read_bytes, 0);
}

TEST(NvmeTier, WhatIsNotWhatWasStoredLastIsTold) {
  constexpr int64_t kPayload = kBlock + 100;
  const auto tier = Create(Settings({kPayload, kPayload}));
  BlockMemory slot(3);
  BlockMemory before(3);
  for (const int64_t record : {0, 1}) Store(*tier, record, slot, kPayload, 5);
  Fetch(*tier, 1, before.block(0));
  // Of the other record, and of none.
  ExpectLost(*tier, 0, before, 0, "of another record");
  std::ranges::fill(slot.all(), std::byte{});
  ExpectLost(*tier, 1, slot, 3 * kBlock, "or of none");
  // Any one bit of the payload, its last one too.
  for (const int64_t byte : {int64_t{0}, kPayload - 1}) {
    Fetch(*tier, 1, slot.block(0));
    NvmeTier::Payload(slot.block(0))[byte] ^= std::byte{0x80};
    ExpectLost(*tier, 1, slot, 3 * kBlock, "the checksum differs");
  }
  // The version before, whose bytes are right.
  Store(*tier, 1, slot, kPayload, 6);
  ExpectLost(*tier, 1, before, 3 * kBlock, "is stale: version 1 came back, 2 was stored last");
  Fetch(*tier, 1, slot.block(0));
  EXPECT_TRUE(tier->Check(1, slot.block(0)).ok());
}

// Answers nothing; the test carries transfers out when it likes.
class LateBackend final : public io::IoBackend {
 public:
  explicit LateBackend(std::vector<io::Transfer>* late) : late_(late) {}
  const char* name() const override { return "late"; }
  absl::Status Open(std::span<const int> descriptors, std::span<const std::span<std::byte>>,
                    int) override {
    file_ = descriptors[0];
    return absl::OkStatus();
  }
  void Submit(std::span<const io::Transfer> transfers) override {
    late_->insert(late_->end(), transfers.begin(), transfers.end());
    for (io::Transfer& transfer : *late_) transfer.file = file_;
  }
  int64_t Reap(std::span<io::Completion> completions, int64_t timeout_ns) override {
    return none_.Reap(completions, timeout_ns);
  }
  void Wake() override { none_.Wake(); }

 private:
  std::vector<io::Transfer>* const late_;
  int file_ = -1;
  io::CompletionQueue none_;
};

// The disk moves bytes after the tier, the slots and who owned them are gone: they find the memory
// and the file that they were meant for. In a child, whose end takes those.
TEST(NvmeTier, ATransferThatTimedOutMayComeAfterTheEnd) {
  EXPECT_EQ(
      memory::InChild([]() -> std::string {
        std::vector<io::Transfer> late;
        {
          memory::Ledger ledger;
          auto buffer = std::make_shared<const memory::HostBuffer>(
              memory::HostBuffer::Allocate(4 * kBlock, MemoryKind::kStaging, &ledger).value());
          auto* const bytes = static_cast<std::byte*>(buffer->data());
          NvmeTier::Settings settings = Settings({kBlock, kBlock});
          settings.backend = [&late] { return std::make_unique<LateBackend>(&late); };
          settings.timeout_s = 0.05;
          settings.memory = std::make_shared<io::TransferMemory>(std::move(buffer));
          const auto tier = Create(settings);
          tier->Seal(0, bytes);
          const absl::Status lost = Move(*tier, &NvmeTier::Store, 0, bytes);
          if (!absl::IsUnavailable(lost)) return lost.ToString();
          // What the late transfer has is given to nobody: not even zeros are written there.
          bytes[1] = std::byte{7};
          for (const Verb verb : {&NvmeTier::Fetch, &NvmeTier::Store}) {
            const absl::Status refused = Move(*tier, verb, 1, bytes);
            if (!absl::IsUnavailable(refused)) return refused.ToString();
          }
          if (bytes[1] != std::byte{7}) return "written";
        }
        if (late.size() != 1) return "not one transfer";
        const ssize_t moved = pwrite(late[0].file, late[0].memory, late[0].bytes, 0);
        return moved == late[0].bytes ? "" : std::strerror(errno);
      }),
      "");
}

// Each folder gets its share, and no record is cut or lies on another.
TEST(NvmeTier, RecordsAreSpreadOverFolders) {
  NvmeTier::Settings settings = Settings(std::vector<int64_t>(12, kBlock));
  settings.folders.clear();
  for (const char* name : {"/a", "/b", "/c"}) {
    settings.folders.push_back(kFolder + name);
    std::filesystem::create_directories(settings.folders.back());
  }
  const std::pair<std::vector<double>, std::vector<int64_t>> cases[] = {
      {{}, {4, 4, 4}}, {{2.0, 1.0, 1.0}, {6, 3, 3}}, {{1.0, 1.0, 4.0}, {2, 2, 8}}};
  for (const auto& [shares, expected] : cases) {
    settings.shares = shares;
    const auto tier = Create(settings);
    EXPECT_EQ(tier->file_bytes(), 12 * 2 * kBlock);
    BlockMemory slot(2);
    BlockMemory none(2);
    std::map<std::string, int64_t> records_in;
    for (int record = 0; record < 12; ++record) {
      Store(*tier, record, slot, kBlock, record);
      const absl::Status named = tier->Check(record, none.block(0));
      for (const std::string& folder : settings.folders) {
        records_in[folder] += std::string(named.message()).find(folder + " ") != std::string::npos;
      }
    }
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(records_in[settings.folders[i]], expected[i]) << settings.folders[i];
    }
    for (int record = 0; record < 12; ++record) {
      Fetch(*tier, record, slot.block(0));
      EXPECT_TRUE(tier->Check(record, slot.block(0)).ok());
      ExpectPayload(slot, kBlock, record);
    }
  }
}

// Disks of these rates, one for each folder.
DiskProbe Disks(const std::map<std::string, double>& rates, int* asked) {
  return {[rates](const std::string& folder) -> uint64_t {
            return std::distance(rates.begin(), rates.find(folder));
          },
          [rates, asked](const std::string& folder) -> absl::StatusOr<double> {
            ++*asked;
            return rates.at(folder);
          }};
}

TEST(NvmeTier, SharesAreMeasuredOnceAndHandedOn) {
  NvmeTier::Settings settings = Settings(std::vector<int64_t>(400, kBlock));
  settings.folders = {kFolder + "/a", kFolder + "/b"};
  for (const std::string& folder : settings.folders) std::filesystem::create_directories(folder);
  int asked = 0;
  settings.disks = Disks({{settings.folders[0], 1e8}, {settings.folders[1], 3e8}}, &asked);
  const auto tier = Create(settings);
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(tier->file_bytes(0), 100 * 2 * kBlock);
  EXPECT_EQ(tier->file_bytes(1), 300 * 2 * kBlock);
  settings.shares = tier->shares();
  const auto later = Create(settings);
  EXPECT_EQ(asked, 2);
  BlockMemory none(2);
  for (int record = 0; record < 400; ++record) {
    Store(*tier, record, none, kBlock, 1);
    Store(*later, record, none, kBlock, 1);
    std::memset(none.block(0), 0, kBlock);
    EXPECT_EQ(tier->Check(record, none.block(0)), later->Check(record, none.block(0)));
  }
}

TEST(Striping, FoldersOfOneDiskShareItsRate) {
  int asked = 0;
  DiskProbe probe = Disks({{"a", 8.0}, {"b", 2.0}, {"c", 2.0}}, &asked);
  EXPECT_THAT(SharesOf({"a", "b", "c"}, probe).value(), testing::ElementsAre(8.0, 2.0, 2.0));
  const auto by_letter = probe.device;
  probe.device = [&](const std::string& folder) { return by_letter(folder) == 1 ? 0 : 7; };
  asked = 0;
  EXPECT_THAT(SharesOf({"a", "b", "c"}, probe).value(), testing::ElementsAre(4.0, 2.0, 4.0));
  EXPECT_EQ(asked, 2);
  probe.device = [](const std::string&) { return 7; };
  asked = 0;
  EXPECT_THAT(SharesOf({"a", "b"}, probe).value(), testing::ElementsAre(1.0, 1.0));
  EXPECT_EQ(asked, 0) << "there is nothing to compare";
  EXPECT_THAT(SharesOf({"a"}, probe).value(), testing::ElementsAre(1.0));
}

TEST(Striping, ADiskThatCannotBeMeasuredIsTold) {
  int asked = 0;
  DiskProbe probe = Disks({{"a", 8.0}, {"b", 2.0}}, &asked);
  probe.rate = [](const std::string&) { return absl::DataLossError("broken"); };
  EXPECT_TRUE(absl::IsDataLoss(SharesOf({"a", "b"}, probe).status()));
  const DiskProbe real = RealDisks(kBlock, 10.0);
  EXPECT_EQ(real.device(kFolder), real.device(kFolder + "/."));
  EXPECT_GT(real.rate(kFolder).value(), 0.0);
  EXPECT_TRUE(absl::IsNotFound(real.rate(kFolder + "/nowhere").status()));
}

// Slow, and with room to spare, so that the share of other programs in the time is small.
TEST(Striping, BytesFollowTheRatesOfThrottledDisks) {
  NvmeTier::Settings settings = Settings(std::vector<int64_t>(200, kBlock));
  settings.folders = {kFolder + "/a", kFolder + "/b"};
  for (const std::string& folder : settings.folders) std::filesystem::create_directories(folder);
  settings.disks.device = [&](const std::string& folder) { return folder == settings.folders[0]; };
  settings.disks.rate = [&](const std::string& folder) {
    constexpr io::RateProbe kProbe = {.bytes = int64_t{4} << 20, .seconds = 60.0};
    const double rate = folder == settings.folders[0] ? 4e6 : 12e6;
    auto file = io::RecordFile::Create(folder, kProbe.bytes, settings.notice).value();
    return io::MeasureRate(io::CreateThrottledBackend(io::CreateMemoryBackend(),
                                                      {.read_rate = rate, .write_rate = rate}),
                           std::make_shared<const io::RecordFile>(std::move(file)), kProbe);
  };
  const auto tier = Create(settings);
  EXPECT_NEAR(tier->shares()[0], 4e6 / 2, 0.5e6) << "there and back";
  const double ratio =
      static_cast<double>(tier->file_bytes(1)) / static_cast<double>(tier->file_bytes(0));
  EXPECT_NEAR(ratio, 3.0, 0.75);
}

}  // namespace
}  // namespace zerohold::tiers
