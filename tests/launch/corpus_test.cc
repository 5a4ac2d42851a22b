// The text: which files are read, what their entropy is, and which windows a step sees.
#include "mpi-launch/train/corpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

namespace zerohold::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class CorpusTest : public testing::Test {
 protected:
  CorpusTest() : folder_(fs::path(testing::TempDir()) / ("corpus-" + std::to_string(getpid()))) {
    fs::create_directories(folder_ / "sub");
  }
  ~CorpusTest() override { fs::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    std::ofstream(folder_ / name) << bytes;
    return folder_ / name;
  }

  const fs::path folder_;
};

TEST_F(CorpusTest, ReadsFoldersInSortedOrderAndEachFileOnce) {
  Write("b", "2");
  Write("sub/c", "3");
  Write("a", "1");
  fs::create_symlink("a", folder_ / "z");
  fs::create_symlink("nowhere", folder_ / "dangling");
  fs::create_directory_symlink("..", folder_ / "sub" / "loop");
  const StatusOr<Corpus> corpus = Corpus::Read({folder_, folder_ / "b"});
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(corpus->bytes(), "123");
  EXPECT_EQ(corpus->files(), 3);
}

TEST_F(CorpusTest, NamesWhatIsMissingOrEmpty) {
  const Status missing = Corpus::Read({folder_ / "x"}).status();
  EXPECT_THAT(std::string(missing.message()),
              AllOf(HasSubstr("/x does not exist"), HasSubstr("give")));
  const std::string empty = Write("empty", "");
  EXPECT_THAT(std::string(Corpus::Read({empty}).status().message()),
              AllOf(HasSubstr(empty + " holds no bytes"), HasSubstr("give")));
  EXPECT_THAT(std::string(Corpus::Read({folder_ / "sub"}).status().message()),
              HasSubstr("holds no bytes"));
}

TEST_F(CorpusTest, HashTellsOneByte) {
  const uint64_t hash = Corpus::Read({Write("a", "some text")})->Hash();
  EXPECT_EQ(hash, Corpus::Read({Write("b", "some text")})->Hash());
  EXPECT_NE(hash, Corpus::Read({Write("c", "some tExt")})->Hash());
}

TEST_F(CorpusTest, UnigramEntropy) {
  EXPECT_EQ(Corpus::Read({Write("a", "aaaa")})->UnigramEntropy(), 0.0);
  EXPECT_NEAR(Corpus::Read({Write("b", "abab")})->UnigramEntropy(), std::log(2.0), 1e-12);
  EXPECT_NEAR(Corpus::Read({Write("c", "aab\xff")})->UnigramEntropy(), 1.5 * std::log(2.0), 1e-12);
}

TEST_F(CorpusTest, WindowsAreEvenAndDependOnSeedStepAndSampleAlone) {
  const StatusOr<Corpus> corpus = Corpus::Read({Write("a", "0123456789")});
  constexpr int64_t kWindow = 7, kChoices = 4, kDraws = 4000;
  std::vector<int64_t> counts(kChoices);
  for (int64_t sample = 0; sample < kDraws; ++sample) {
    const int64_t begin = corpus->WindowBegin(1, 1, sample, kWindow);
    ASSERT_EQ(begin, corpus->WindowBegin(1, 1, sample, kWindow));
    ++counts.at(static_cast<size_t>(begin));
  }
  for (const int64_t count : counts) EXPECT_NEAR(count, kDraws / kChoices, 150);  // 5 sigma
  std::set<std::string> draws;
  for (const auto& [seed, step] : {std::pair{1, 1}, {1, 2}, {2, 1}, {2, 2}}) {
    std::string draw;
    for (int64_t sample = 0; sample < 64; ++sample) {
      draw += static_cast<char>('0' + corpus->WindowBegin(seed, step, sample, kWindow));
    }
    draws.insert(draw);
  }
  EXPECT_EQ(draws.size(), 4u);
  EXPECT_EQ(corpus->WindowBegin(1, 1, 0, 10), 0);  // one choice
}

}  // namespace
}  // namespace zerohold::train
