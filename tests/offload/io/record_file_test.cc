// Record files have no name, hold their room, and go with their owner, however it goes.
#include "offload/io/record_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "offload/io/backends.h"
#include "offload/io/mover.h"
#include "tests/offload/io/answer.h"
#include "tests/offload/io/block_memory.h"
#include "tests/offload/io/refuse_calls.h"
#include "tests/src/memory/child.h"

namespace zerohold::io {
namespace {

using memory::InChild;
using testing::HasSubstr;

constexpr int64_t kBytes = 1 << 20;

bool IsDirect(const RecordFile& file) {
  return (fcntl(file.descriptor(), F_GETFL) & O_DIRECT) != 0;
}

class RecordFileTest : public testing::Test {
 protected:
  RecordFileTest() {
    std::string name = std::string(ZH_TEST_FOLDER) + "/records.XXXXXX";
    folder_ = mkdtemp(name.data());
  }
  ~RecordFileTest() override { std::filesystem::remove_all(folder_); }

  // What is there to see in the folder.
  int64_t Names() const {
    return std::distance(std::filesystem::directory_iterator(folder_),
                         std::filesystem::directory_iterator());
  }
  // Makes a file while a system call is refused; describes what came of it.
  std::string MakeWithout(long call, int error, const std::vector<Where>& where) {
    return InChild([&]() -> std::string {
      const std::string skip = RefuseCall(call, error, where);
      if (!skip.empty()) return skip;
      std::string told;
      absl::StatusOr<RecordFile> file = RecordFile::Create(
          folder_, kBytes, [&told](const std::string& line) { told += line + "\n"; });
      if (!file.ok()) return told + file.status().ToString();
      struct stat entry = {};
      fstat(file->descriptor(), &entry);
      BlockMemory memory(1);
      const bool moves = pwrite(file->descriptor(), memory.block(0), kBlock, 2 * kBlock) == kBlock;
      return told + (IsDirect(*file) ? "direct" : "cached") + ", links " +
             std::to_string(entry.st_nlink) + ", bytes " + std::to_string(entry.st_size) +
             (moves ? "" : ", does not take a block");
    });
  }

  std::string folder_;
};

TEST_F(RecordFileTest, IsNamelessPrivateReservedAndDirect) {
  std::string told;
  const RecordFile file =
      RecordFile::Create(folder_, kBytes, [&](const std::string& line) { told += line; }).value();
  EXPECT_EQ(Names(), 0);
  struct stat entry = {};
  ASSERT_EQ(fstat(file.descriptor(), &entry), 0);
  EXPECT_EQ(entry.st_nlink, 0u);
  EXPECT_EQ(entry.st_mode & 0777, 0600u);
  EXPECT_EQ(entry.st_size, kBytes);
  EXPECT_GE(entry.st_blocks * 512, kBytes);
  EXPECT_EQ(file.bytes(), kBytes);
  EXPECT_EQ(file.folder(), folder_);
  EXPECT_TRUE(fcntl(file.descriptor(), F_GETFD) & FD_CLOEXEC);
  // Either it is direct, or it was said that it is not.
  EXPECT_EQ(IsDirect(file), told.empty()) << told;
}

TEST_F(RecordFileTest, IsMovedWithItsDescriptor) {
  RecordFile first = RecordFile::Create(folder_, kBytes, [](auto&) {}).value();
  const int descriptor = first.descriptor();
  RecordFile second = std::move(first);
  EXPECT_EQ(second.descriptor(), descriptor);
  EXPECT_EQ(second.bytes(), kBytes);
  EXPECT_EQ(second.folder(), folder_);
  { const RecordFile third = std::move(second); }
  EXPECT_EQ(fcntl(descriptor, F_GETFD), -1);  // closed once, by the last
}

TEST_F(RecordFileTest, OfNothingIsLegal) {
  EXPECT_EQ(RecordFile::Create(folder_, 0, [](auto&) {}).value().bytes(), 0);
}

TEST_F(RecordFileTest, TwoJobsShareAFolder) {
  const RecordFile mine = RecordFile::Create(folder_, kBytes, [](auto&) {}).value();
  const RecordFile other = RecordFile::Create(folder_, kBytes, [](auto&) {}).value();
  BlockMemory memory(3);
  memory.Fill(0, 1);
  memory.Fill(1, 2);
  ASSERT_EQ(pwrite(mine.descriptor(), memory.block(0), kBlock, 0), kBlock);
  ASSERT_EQ(pwrite(other.descriptor(), memory.block(1), kBlock, 0), kBlock);
  ASSERT_EQ(pread(mine.descriptor(), memory.block(2), kBlock, 0), kBlock);
  EXPECT_TRUE(memory.Holds(2, 1));
}

// Of the named way too: the name is gone before anything is written.
TEST_F(RecordFileTest, NothingIsLeftOfAKilledJob) {
  for (const bool nameless : {true, false}) {
    const std::string end = InChild([&]() -> std::string {
      if (!nameless) {
        const std::string skip = RefuseCall(__NR_openat, EOPNOTSUPP,
                                            {{2, Where::Test::kHasBits, O_TMPFILE & ~O_DIRECTORY}});
        if (!skip.empty()) return skip;
      }
      const RecordFile file = RecordFile::Create(folder_, kBytes, [](auto&) {}).value();
      raise(SIGKILL);
      return "alive";
    });
    if (end.starts_with("skip")) GTEST_SKIP() << end;
    EXPECT_EQ(end, "killed by signal 9");
    EXPECT_EQ(Names(), 0);
  }
}

TEST_F(RecordFileTest, WithoutTmpfileTheNameIsGoneAtOnce) {
  for (const int error : {EOPNOTSUPP, EISDIR}) {
    const std::string result =
        MakeWithout(__NR_openat, error, {{2, Where::Test::kHasBits, O_TMPFILE & ~O_DIRECTORY}});
    if (result.starts_with("skip")) GTEST_SKIP() << result;
    EXPECT_THAT(result, HasSubstr("links 0, bytes 1048576"));
    EXPECT_EQ(Names(), 0);
  }
}

// Some take the flag and then refuse the transfer: that is found too.
TEST_F(RecordFileTest, WithoutDirectIoItSaysSo) {
  const std::string flag =
      MakeWithout(__NR_fcntl, EINVAL,
                  {{1, Where::Test::kEquals, F_SETFL}, {2, Where::Test::kHasBits, O_DIRECT}});
  if (flag.starts_with("skip")) GTEST_SKIP() << flag;
  EXPECT_EQ(flag, "nvme_paths: \"" + folder_ +
                      "\" refuses direct I/O (Invalid argument): records go through the kernel's "
                      "page cache, slower and with more memory\ncached, links 0, bytes 1048576");
  const std::string transfer = MakeWithout(__NR_pwrite64, EINVAL, {{3, Where::Test::kEquals, 0}});
  EXPECT_THAT(transfer, HasSubstr("refuses direct I/O (Invalid argument)"));
  EXPECT_THAT(transfer, HasSubstr("\ncached, links 0, bytes 1048576"));
  EXPECT_THAT(transfer, testing::Not(HasSubstr("does not take")));
}

TEST_F(RecordFileTest, WithoutReservationItSaysSo) {
  const std::string result = MakeWithout(__NR_fallocate, EOPNOTSUPP, {});
  if (result.starts_with("skip")) GTEST_SKIP() << result;
  EXPECT_THAT(result, HasSubstr("reserves no room"));
  EXPECT_THAT(result, HasSubstr("links 0, bytes 1048576"));
}

TEST_F(RecordFileTest, HoldsWhatAMoverBrings) {
  constexpr int64_t kBlocks = 256;
  for (const int threads : {0, 3}) {
    const RecordFile file = RecordFile::Create(folder_, kBlocks * kBlock, [](auto&) {}).value();
    BlockMemory memory(kBlocks);
    const std::span<std::byte> spans[] = {memory.all()};
    auto backend = threads > 0 ? CreateThreadBackend(threads) : CreateBestBackend([](auto&) {});
    auto mover =
        Mover::Create(std::move(backend), {{file.descriptor(), folder_}}, spans, {.depth = 4})
            .value();
    for (const Direction direction : {Direction::kWrite, Direction::kRead}) {
      std::vector<Answer> answers(kBlocks / 16);
      for (int64_t i = 0; i < kBlocks; ++i) {
        memory.Fill(i, direction == Direction::kWrite ? 100 * i : 0);
      }
      for (size_t i = 0; i < answers.size(); ++i) {
        mover->Move(answers[i].To({.direction = direction,
                                   .offset_bytes = static_cast<int64_t>(i) * 16 * kBlock,
                                   .memory = memory.block(static_cast<int64_t>(i) * 16),
                                   .bytes = 16 * kBlock}));
      }
      for (Answer& answer : answers) EXPECT_TRUE(answer.Get().ok());
    }
    for (int64_t i = 0; i < kBlocks; ++i) EXPECT_TRUE(memory.Holds(i, 100 * i)) << i;
  }
}

}  // namespace
}  // namespace zerohold::io
