// The mapping half of cases that others got wrong, by their ids.
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>

#include <numeric>
#include <span>

#include "tests/src/layout/models.h"

namespace zerohold::layout {
namespace {

// More ranks than tensors: all ranks see the same owners, and ranks without a tensor are legal.
TEST(PartitioningCases, PAR_02) {
  constexpr int kWorld = 5;
  const std::vector<ParameterSpec> parameters = {Parameter("a", {5}), Parameter("b", {2})};
  std::vector<std::vector<Range>> tables;
  int64_t updated = 0;
  for (int rank = 0; rank < kWorld; ++rank) {
    const Layout layout = MakeLayout(Sharded(kWorld, rank), parameters, OneUnit(parameters));
    std::vector<Range>& table = tables.emplace_back();
    for (int64_t bucket = 0; bucket < layout.bucket_count(); ++bucket) {
      for (int owner = 0; owner < kWorld; ++owner) {
        table.push_back(layout.ShardOf(layout.BucketAt(bucket), owner));
      }
    }
    for (const Record& record : layout.records()) updated += record.elems;
  }
  EXPECT_THAT(tables, testing::Each(tables[0]));
  EXPECT_EQ(updated, 256);  // both tensors and padding, once
}

// An empty tensor keeps its place, its order and its shape.
TEST(PartitioningCases, PAR_04) {
  const std::vector<ParameterSpec> parameters = {Parameter("a", {8}), Parameter("b", {0, 8}),
                                                 Parameter("c", {24})};
  const Layout layout = MakeLayout(Sharded(2, 0), parameters, OneUnit(parameters));
  ASSERT_EQ(layout.spaces().size(), 1u);
  ASSERT_EQ(layout.spaces()[0].parameters.size(), 3u);
  EXPECT_EQ(layout.spaces()[0].parameters[1].id, 1);
  EXPECT_EQ(layout.PlaceOf(0).range, (Range{0, 8}));
  EXPECT_EQ(layout.PlaceOf(1).range, (Range{64, 64}));
  EXPECT_EQ(layout.PlaceOf(2).range, (Range{64, 88}));
  EXPECT_EQ(layout.total_elems(), 32);
  EXPECT_THAT(Describe(parameters, OneUnit(parameters), 0), testing::HasSubstr("\"b\" [0, 8] "));
}

// Scatters a flat space into the ranks' records, gathers it again and compares the tensors.
void ScatterAndGather(const std::vector<ParameterSpec>& parameters, int world) {
  std::vector<std::vector<std::vector<float>>> shards;  // by rank and record
  std::vector<float> gathered;
  for (int rank = 0; rank < world; ++rank) {
    LayoutConfig config = Sharded(world, rank);
    config.bucket_elems = 1024;
    config.record_elems = 512;
    const Layout layout = MakeLayout(config, parameters, OneUnit(parameters));
    std::vector<float> flat(layout.spaces()[0].elems, -1);
    float value = 0;
    for (const FlatParameter& p : layout.spaces()[0].parameters) {
      for (int64_t i = 0; i < p.elems; ++i) flat[p.begin + i] = value++;
    }
    gathered.resize(flat.size(), -2);
    std::vector<std::vector<float>>& mine = shards.emplace_back();
    for (const Record& record : layout.records()) {
      std::vector<float>& array = mine.emplace_back(record.elems);
      for (const auto& [range, offset] : record.pieces) {
        std::copy(&flat[range.begin], &flat[range.begin] + range.size(), &array[offset]);
      }
    }
    for (size_t r = 0; r < mine.size(); ++r) {
      for (const auto& [range, offset] : layout.records()[r].pieces) {
        std::copy(&mine[r][offset], &mine[r][offset] + range.size(), &gathered[range.begin]);
      }
    }
    if (rank + 1 < world) continue;
    EXPECT_EQ(gathered, flat);
  }
}

TEST(PartitioningCases, PAR_06) {
  for (int world = 2; world <= 8; ++world) {
    ScatterAndGather(
        {Parameter("a", {7}), Parameter("b", {5, 3}), Parameter("c", {1}), Parameter("d", {11})},
        world);
    // The same shapes, large enough that every rank has a part.
    ScatterAndGather({Parameter("a", {7, 97}), Parameter("b", {5, 3, 131}), Parameter("c", {1}),
                      Parameter("d", {11, 89})},
                     world);
  }
}

// The flat space grows beyond 2^32 although no tensor does.
TEST(PartitioningCases, PAR_08) {
  std::vector<ParameterSpec> parameters;
  for (int i = 0; i < 5; ++i) {
    parameters.push_back(Parameter(absl::StrCat("t", i), {1 << 15, 1 << 15}));
  }
  for (const int world : {1, 2}) {
    const Layout layout = MakeLayout(Sharded(world, world - 1), parameters, OneUnit(parameters));
    const Layout::Place place = layout.PlaceOf(4);
    EXPECT_EQ(place.range.begin, 4294967296);
    EXPECT_EQ(layout.spaces()[place.space].parameter_offset_bytes + place.range.begin * 4,
              17179869184);
    EXPECT_EQ(layout.total_elems(), 5368709120);
    int64_t updated = 0;
    for (const Record& record : layout.records()) updated += record.elems;
    EXPECT_EQ(updated, 5368709120 / world);
    const Range last = layout.BucketAt(layout.bucket_count() - 1).range;
    EXPECT_EQ(last.end, 5368709120);
  }
}

// Every view begins at a multiple of 64 bytes in both arenas.
TEST(PartitioningCases, PAR_18) {
  std::vector<ParameterSpec> parameters;
  for (const int64_t elems : {1, 3, 5, 7}) {
    parameters.push_back(Parameter(absl::StrCat("t", elems), {elems}, DType::kBFloat16));
  }
  const Layout layout = MakeLayout(Sharded(2, 0), parameters, OneUnit(parameters));
  for (ParameterId id = 0; id < 4; ++id) {
    const Layout::Place place = layout.PlaceOf(id);
    const FlatSpace& space = layout.spaces()[place.space];
    EXPECT_EQ((space.parameter_offset_bytes + place.range.begin * 2) % 64, 0);
    EXPECT_EQ((space.gradient_offset_bytes + place.range.begin * 2) % 64, 0);
  }
}

// A tied weight has one owner and one place, whoever uses it.
TEST(PartitioningCases, PAR_20) {
  const std::vector<ParameterSpec> parameters = {Parameter("t", {100})};
  const std::vector<UnitSpec> units = {{"in", {"t"}, {}}, {"out", {}, {"t"}}};
  const Layout layout = MakeLayout(Sharded(3, 0), parameters, units);
  EXPECT_EQ(layout.total_elems(), 100);
  EXPECT_EQ(layout.spaces().size(), 1u);
  EXPECT_EQ(layout.units()[1].first_space, layout.units()[1].last_space);
  EXPECT_EQ(layout.units()[0].first_touch, 0);
  EXPECT_EQ(layout.units()[0].last_touch, 1);
}

}  // namespace
}  // namespace zerohold::layout
