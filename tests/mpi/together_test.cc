// Everything together: a pairwise covering array over what a run can be told, so that any two
// settings meet in some row. A row's weights must be those of the same run with all of it in memory
// and no overlap. A later option is one more factor here.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/launch/program.h"

namespace zerohold::launch_test {
namespace {

struct Factor {
  std::string name;
  std::vector<std::string> levels;
  bool in_memory_too = true;  // told to the run that is compared, too
};

const std::vector<Factor>& Factors() {
  static const std::vector<Factor> factors = {
      {"--optimizer-rule", {"adamw", "adam", "sgd", "lion", "adagrad"}},
      {"--zero-stage", {"3", "2", "1", "0"}},
      {"--dtype", {"bf16", "fp32", "fp16"}},
      {"ranks", {"2", "1", "3"}},
      {"--offload", {"nvme", "mixed", "host"}, false},
      {"--accumulate", {"1", "2"}},
      {"--master", {"fp32", "remainder"}},
      {"--recompute", {"off", "on"}},
      {"--params-offload", {"host", "nvme"}, false},
      {"--gradients-offload", {"host", "nvme"}, false},
      {"--overlap-next-forward", {"off", "on"}, false},
  };
  return factors;
}

using Row = std::vector<int>;  // levels, by factor

std::string Level(const Row& row, const std::string& name) {
  for (size_t i = 0; i < row.size(); ++i) {
    if (Factors()[i].name == name) return Factors()[i].levels[row[i]];
  }
  return "";
}

// What zh-train takes; the first level of every factor goes with any other one.
bool Legal(const Row& row) {
  const std::string stage = Level(row, "--zero-stage");
  if (Level(row, "--master") == "remainder" && Level(row, "--dtype") != "bf16") return false;
  if (Level(row, "--params-offload") == "nvme" && stage != "3") return false;
  return Level(row, "--gradients-offload") == "host" ||
         (stage >= "2" && Level(row, "--accumulate") == "1");
}

using Setting = std::pair<size_t, int>;  // factor and level
using Pair = std::pair<Setting, Setting>;

std::set<Pair> PairsOf(const Row& row) {
  std::set<Pair> pairs;
  for (size_t i = 0; i < row.size(); ++i) {
    for (size_t j = i + 1; j < row.size(); ++j) pairs.insert({{i, row[i]}, {j, row[j]}});
  }
  return pairs;
}

std::set<Pair> LegalPairs() {
  std::set<Pair> pairs;
  const size_t count = Factors().size();
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = i + 1; j < count; ++j) {
      for (int a = 0; a < std::ssize(Factors()[i].levels); ++a) {
        for (int b = 0; b < std::ssize(Factors()[j].levels); ++b) {
          Row row(count, 0);
          row[i] = a;
          row[j] = b;
          if (Legal(row)) pairs.insert({{i, a}, {j, b}});
        }
      }
    }
  }
  return pairs;
}

// Greedy: of many random rows the one that has most of the pairs that are left.
std::vector<Row> CoveringArray() {
  std::mt19937 random(1);
  std::set<Pair> left = LegalPairs();
  std::vector<Row> rows;
  while (!left.empty()) {
    Row best;
    size_t most = 0;
    for (int tries = 0; tries < 3000; ++tries) {
      Row row;
      for (const Factor& factor : Factors()) {
        row.push_back(static_cast<int>(random() % factor.levels.size()));
      }
      // One pair that is left is in every candidate, so that each row has some.
      const auto& [a, b] = *std::next(left.begin(), static_cast<int64_t>(random() % left.size()));
      row[a.first] = a.second;
      row[b.first] = b.second;
      if (!Legal(row)) continue;
      size_t covers = 0;
      for (const Pair& pair : PairsOf(row)) covers += left.count(pair);
      if (covers <= most) continue;
      most = covers;
      best = row;
    }
    for (const Pair& pair : PairsOf(best)) left.erase(pair);
    rows.push_back(best);
  }
  return rows;
}

std::string FlagsOf(const Row& row, bool in_memory, const std::string& folder) {
  std::string flags = "--layers 3 --steps 3 --bucket-elems 2000";
  bool disk = false;
  for (size_t i = 0; i < row.size(); ++i) {
    const Factor& factor = Factors()[i];
    const std::string& level = factor.levels[row[i]];
    if (factor.name == "ranks" || level == "off") continue;
    if (in_memory && !factor.in_memory_too) continue;
    disk |= level == "nvme" || level == "mixed";
    flags += " " + factor.name;
    if (level == "mixed") {
      flags += " nvme --window 3 --host-budget 60000";
    } else if (level != "on") {
      flags += " " + level;
    }
  }
  return disk ? flags + " --nvme-path " + folder : flags;
}

TEST(Together, AnyTwoOptionsGiveTheBitsOfMemory) {
  const DiskFolder disk;
  const std::vector<Row> rows = CoveringArray();
  EXPECT_LE(rows.size(), 24u);
  std::map<std::string, std::string> hashes;  // of runs in memory
  for (const Row& row : rows) {
    const int ranks = std::stoi(Level(row, "ranks"));
    const std::string flags = FlagsOf(row, false, disk.path());
    const std::string plain = FlagsOf(row, true, disk.path());
    SCOPED_TRACE(std::to_string(ranks) + " ranks: " + flags);
    std::string& expected = hashes[std::to_string(ranks) + plain];
    if (expected.empty()) expected = HashOf(TrainAndReadLog(ranks, plain));
    ASSERT_EQ(expected.size(), 16u);
    EXPECT_EQ(HashOf(TrainAndReadLog(ranks, flags)), expected);
  }
  std::printf("%zu rows, %zu runs in memory beside them\n", rows.size(), hashes.size());
}

}  // namespace
}  // namespace zerohold::launch_test
