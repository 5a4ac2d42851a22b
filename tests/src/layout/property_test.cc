// Random models, worlds and sizes: every element has one place and one owner, whoever asks.
#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "src/base/align.h"
#include "tests/src/layout/models.h"

namespace zerohold::layout {
namespace {

using base::kBlockElems;

struct Model {
  std::vector<ParameterSpec> parameters;
  std::vector<UnitSpec> units;
  LayoutConfig config;  // rank 0
};

class RandomModel : public testing::TestWithParam<int> {
 protected:
  template <typename T>
  T Pick(const std::vector<T>& from) {
    return from[random_() % from.size()];
  }

  ParameterSpec MakeParameter(int index) {
    const std::vector<int64_t> extents = {0, 1, 1, 2, 3, 5, 7, 13, 31, 64, 100, 257};
    ParameterSpec parameter = Parameter(absl::StrCat("p", index), {});
    for (auto rank = random_() % 4; rank > 0; --rank) parameter.shape.push_back(Pick(extents));
    parameter.dtype = static_cast<DType>(random_() % 3);
    parameter.group = static_cast<int>(random_() % 3);
    parameter.frozen = random_() % 5 == 0;
    parameter.norm_weight = Pick<double>({1, 1, 1, 0.5});
    parameter.communicator = Pick<int>({0, 0, 0, 1});
    parameter.mean_ranks = Pick<int>({0, 0, 0, 8});
    parameter.atomic = random_() % 5 == 0;
    return parameter;
  }

  Model MakeModel() {
    Model model;
    const auto count = static_cast<int>(random_() % 30);
    model.units.resize(1 + random_() % 6);
    for (size_t i = 0; i < model.units.size(); ++i) model.units[i].name = absl::StrCat("u", i);
    for (int i = 0; i < count; ++i) {
      const std::string name = model.parameters.emplace_back(MakeParameter(i)).name;
      model.units[random_() % model.units.size()].parameters.push_back(name);
    }
    for (UnitSpec& unit : model.units) std::ranges::shuffle(unit.parameters, random_);
    model.config.communicators = {{Pick<int>({1, 2, 3, 4, 5, 7, 8, 13, 64})},
                                  {Pick<int>({1, 2, 3})}};
    model.config.shard_update = Pick<int>({0, 1}) == 1;
    model.config.bucket_elems = Pick<int64_t>({1, 256, 300, 1024, 4097, int64_t{1} << 20});
    model.config.record_elems = Pick<int64_t>({1, 512, 1000, 10000, int64_t{1} << 18});
    return model;
  }

  Layout Plan(const Model& model, int rank) {
    LayoutConfig config = model.config;
    for (Membership& member : config.communicators) member.rank = rank % member.world;
    return MakeLayout(config, model.parameters, model.units);
  }

  // Every rank of a communicator is among them; where every rank updates everything, one is enough.
  static constexpr int kRanks = 64;
  static bool Counts(const Layout& layout, int32_t space, int rank) {
    return rank < (layout.config().shard_update ? layout.MembershipIn(space).world : 1);
  }
  static void ExpectSpacesKept(const Layout& before, const Layout& after) {
    for (size_t i = 0; i < before.spaces().size(); ++i) {
      const FlatSpace& a = before.spaces()[i];
      const FlatSpace& b = after.spaces()[i];
      ASSERT_EQ(b.unit, a.unit);
      ASSERT_EQ(b.elems, a.elems);
      ASSERT_EQ(b.parameter_offset_bytes, a.parameter_offset_bytes);
      ASSERT_EQ(b.gradient_offset_bytes, a.gradient_offset_bytes);
      ASSERT_EQ(b.held_elems, a.held_elems);
      for (const FlatParameter& parameter : a.parameters) {
        ASSERT_EQ(after.PlaceOf(parameter.id).space, static_cast<int32_t>(i));
        ASSERT_EQ(after.PlaceOf(parameter.id).range, before.PlaceOf(parameter.id).range);
      }
    }
  }

  std::mt19937_64 random_{static_cast<uint64_t>(GetParam())};
};

TEST_P(RandomModel, EveryParameterHasOnePlace) {
  const Model model = MakeModel();
  const Layout layout = Plan(model, 0);
  int64_t total = 0;
  for (size_t unit = 0, space = 0; unit < model.units.size(); ++unit) {
    const UnitPlace& place = layout.units()[unit];
    ASSERT_EQ(place.first_space, static_cast<int>(space));
    for (; space < static_cast<size_t>(place.last_space); ++space) {
      ASSERT_EQ(layout.spaces()[space].unit, static_cast<UnitId>(unit));
    }
  }
  std::vector<int> seen(model.parameters.size());
  for (const FlatSpace& space : layout.spaces()) {
    ASSERT_FALSE(space.parameters.empty());
    ASSERT_EQ(space.elems % kBlockElems, 0);
    int64_t end = 0;
    for (const FlatParameter& parameter : space.parameters) {
      const ParameterSpec& spec = model.parameters[parameter.id];
      int64_t elems = 1;
      for (const int64_t extent : spec.shape) elems *= extent;
      ++seen[parameter.id];
      ASSERT_EQ(parameter.elems, elems);
      ASSERT_EQ(parameter.begin, base::AlignUp(end, base::kParameterAlignElems));
      ASSERT_EQ(parameter.group, spec.group);
      ASSERT_EQ(space.dtype, spec.dtype);
      ASSERT_EQ(space.frozen, spec.frozen);
      ASSERT_EQ(space.communicator, spec.communicator);
      ASSERT_EQ(space.norm_weight, spec.norm_weight);
      end = parameter.begin + elems;
      const Layout::Place place = layout.PlaceOf(parameter.id);
      ASSERT_EQ(&layout.spaces()[place.space], &space);
      ASSERT_EQ(place.range, (Range{parameter.begin, end}));
      total += elems;
    }
    ASSERT_EQ(space.elems, base::AlignUp(end, kBlockElems));
  }
  ASSERT_EQ(std::ranges::count(seen, 1), static_cast<int64_t>(seen.size()));
  ASSERT_EQ(layout.total_elems(), total);
}

TEST_P(RandomModel, SpacesDoNotOverlapInTheArenas) {
  const Layout layout = Plan(MakeModel(), 0);
  int64_t parameters_end = 0;
  int64_t gradients_end = 0;
  for (const FlatSpace& space : layout.spaces()) {
    const int64_t bytes = space.elems * SizeOf(space.dtype);
    ASSERT_GE(space.parameter_offset_bytes, parameters_end);
    ASSERT_EQ(space.parameter_offset_bytes % (kBlockElems * SizeOf(space.dtype)), 0);
    parameters_end = space.parameter_offset_bytes + bytes;
    if (space.frozen) continue;
    ASSERT_GE(space.gradient_offset_bytes, gradients_end);
    ASSERT_EQ(space.gradient_offset_bytes % (kBlockElems * SizeOf(space.dtype)), 0);
    gradients_end = space.gradient_offset_bytes + bytes;
  }
  ASSERT_EQ(layout.arenas()[0].parameter_bytes, base::AlignUp(parameters_end, base::kPageBytes));
  ASSERT_EQ(layout.arenas()[0].gradient_bytes, base::AlignUp(gradients_end, base::kPageBytes));
}

// Buckets one after the other cut every space; shards cut every bucket.
TEST_P(RandomModel, BucketsAndShardsCoverOnce) {
  const Layout layout = Plan(MakeModel(), 0);
  int64_t index = 0;
  int64_t longest = 0;
  for (size_t s = 0; s < layout.spaces().size(); ++s) {
    const FlatSpace& space = layout.spaces()[s];
    ASSERT_EQ(space.first_bucket, index);
    const int64_t elems = space.elems;
    const int world = layout.MembershipIn(static_cast<int32_t>(s)).world;
    // Where one rank has all of a bucket, buckets are as short as shards elsewhere.
    const int64_t blocks = layout.config().bucket_elems / kBlockElems;
    const int64_t sharers = space.owner < 0 ? 1 : world;
    ASSERT_EQ(space.bucket_elems, (blocks + sharers - 1) / sharers * kBlockElems);
    for (int64_t begin = 0; begin < elems; begin += space.bucket_elems, ++index) {
      const Bucket bucket = layout.BucketAt(index);
      ASSERT_EQ(bucket.space, static_cast<int32_t>(s));
      ASSERT_EQ(bucket.index, index);
      const int64_t end = std::min(elems, begin + space.bucket_elems);
      ASSERT_EQ(bucket.range, (Range{begin, end}));
      std::vector<Range> shards;
      for (int rank = 0; rank < world; ++rank) shards.push_back(layout.ShardOf(bucket, rank));
      std::ranges::sort(shards, {}, [](const Range& r) { return std::pair(r.begin, r.end); });
      int64_t covered = begin;
      for (const Range& shard : shards) {
        ASSERT_EQ(shard.begin, covered);
        ASSERT_EQ(shard.begin % kBlockElems, 0);
        if (space.owner < 0) {
          ASSERT_LE(std::abs(shard.size() - shards[0].size()), kBlockElems);
        } else {
          ASSERT_TRUE(shard.size() == 0 || shard == bucket.range) << "in one piece, on one rank";
        }
        longest = std::max(longest, shard.size());
        covered = shard.end;
      }
      ASSERT_EQ(covered, end);
    }
  }
  ASSERT_EQ(layout.bucket_count(), index);
  ASSERT_EQ(layout.MaxShardElems(), longest);
}

// The records of a rank are its shards, one after the other, and those of all ranks cover
// everything.
TEST_P(RandomModel, RecordsCoverWhatIsUpdated) {
  const Model model = MakeModel();
  std::vector<std::vector<int>> owners;  // of each block of each space
  for (int rank = 0; rank < kRanks; ++rank) {
    const Layout layout = Plan(model, rank);
    owners.resize(layout.spaces().size());
    std::vector<int64_t> taken(owners.size());             // elements of records so far, by space
    std::vector<std::vector<int64_t>> own(owners.size());  // first elements of own blocks, in order
    for (int64_t index = 0; index < layout.bucket_count(); ++index) {
      const Bucket bucket = layout.BucketAt(index);
      const Range shard = layout.HeldOf(bucket);
      if (layout.spaces()[bucket.space].frozen) continue;
      for (int64_t at = shard.begin; at < shard.end; at += kBlockElems)
        own[bucket.space].push_back(at);
    }
    for (const Record& record : layout.records()) {
      owners[record.space].resize(layout.spaces()[record.space].elems / kBlockElems);
      int64_t& done = taken[record.space];
      ASSERT_EQ(done % layout.config().record_elems, 0) << "only the last record may be short";
      int64_t offset = 0;
      int64_t last_end = -1;
      for (const RecordPiece& piece : record.pieces) {
        ASSERT_EQ(piece.offset, offset);
        ASSERT_GT(piece.range.size(), 0);
        ASSERT_NE(piece.range.begin, last_end) << "pieces that touch are one";
        last_end = piece.range.end;
        for (int64_t at = piece.range.begin; at < piece.range.end; at += kBlockElems) {
          ASSERT_EQ(at, own[record.space].at((done + offset) / kBlockElems));
          if (Counts(layout, record.space, rank)) ++owners[record.space][at / kBlockElems];
          offset += kBlockElems;
        }
      }
      ASSERT_EQ(record.elems, offset);
      ASSERT_LE(record.elems, layout.config().record_elems);
      done += record.elems;
    }
    for (size_t s = 0; s < own.size(); ++s) {
      ASSERT_EQ(taken[s], static_cast<int64_t>(own[s].size()) * kBlockElems);
    }
  }
  const Layout layout = Plan(model, 0);
  for (size_t s = 0; s < owners.size(); ++s) {
    const int64_t elems = layout.spaces()[s].frozen ? 0 : layout.spaces()[s].elems;
    ASSERT_EQ(std::ranges::count(owners[s], 1), elems / kBlockElems);
    ASSERT_EQ(static_cast<int64_t>(owners[s].size()), elems / kBlockElems);
  }
}

TEST_P(RandomModel, OnlyRecordsDependOnTheRank) {
  const Model model = MakeModel();
  const Layout a = Plan(model, 0);
  const Layout b = Plan(model, kRanks - 1);
  ASSERT_EQ(a.spaces().size(), b.spaces().size());
  for (size_t s = 0; s < a.spaces().size(); ++s) {
    EXPECT_EQ(a.spaces()[s].elems, b.spaces()[s].elems);
    EXPECT_EQ(a.spaces()[s].parameter_offset_bytes, b.spaces()[s].parameter_offset_bytes);
    EXPECT_EQ(a.spaces()[s].gradient_offset_bytes, b.spaces()[s].gradient_offset_bytes);
  }
  ASSERT_EQ(a.bucket_count(), b.bucket_count());
  for (int64_t i = 0; i < a.bucket_count(); ++i) {
    const Bucket bucket = a.BucketAt(i);
    const int rank = static_cast<int>(i % a.MembershipIn(bucket.space).world);
    EXPECT_EQ(a.ShardOf(bucket, rank), b.ShardOf(b.BucketAt(i), rank));
  }
  const Model copy = model;
  for (const int c : {0, 1}) {
    EXPECT_EQ(Describe(model.parameters, model.units, c), Describe(copy.parameters, copy.units, c));
  }
}

// What units that come later leave as it was: all of the others' places, cuts and records.
TEST_P(RandomModel, AppendedUnitsChangeNothingOfThoseBefore) {
  Model model = MakeModel();
  model.config.parameter_frames = random_() % 2 == 0;
  model.config.gradient_frames = random_() % 2 == 0;
  model.config.persistence_threshold_elems = Pick<int64_t>({0, 300});
  const int world = model.config.communicators[0].world;
  for (int round = 0; round < 3; ++round) {
    const int rank = static_cast<int>(random_() % world);
    const Layout before = Plan(model, rank);
    model.config.generations.push_back(static_cast<UnitId>(model.units.size()));
    for (Model more = MakeModel(); ParameterSpec & parameter : more.parameters) {
      UnitSpec& unit = model.units.emplace_back();
      unit.name = absl::StrCat("late", model.units.size());
      parameter.name = unit.name;
      unit.parameters = {parameter.name};
      model.parameters.push_back(parameter);
    }
    const Layout after = Plan(model, rank);
    ASSERT_EQ(after.arenas().size(), before.arenas().size() + 1);
    for (size_t i = 0; i < before.arenas().size(); ++i) {
      ASSERT_EQ(after.arenas()[i], before.arenas()[i]);
    }
    for (size_t i = 0; i < before.units().size(); ++i) {
      const UnitPlace& a = before.units()[i];
      const UnitPlace& b = after.units()[i];
      ASSERT_EQ(b.generation, a.generation);
      ASSERT_EQ(std::pair(b.first_space, b.last_space), std::pair(a.first_space, a.last_space));
      ASSERT_EQ(std::pair(b.parameters_framed, b.gradients_framed),
                std::pair(a.parameters_framed, a.gradients_framed));
      ASSERT_EQ(b.parameter_bytes, a.parameter_bytes);
      ASSERT_EQ(b.gradient_bytes, a.gradient_bytes);
    }
    ExpectSpacesKept(before, after);
    for (int64_t i = 0; i < before.bucket_count(); ++i) {
      const Bucket bucket = after.BucketAt(i);
      ASSERT_EQ(bucket.space, before.BucketAt(i).space);
      ASSERT_EQ(bucket.range, before.BucketAt(i).range);
      ASSERT_EQ(after.HeldBegin(bucket), before.HeldBegin(bucket));
      ASSERT_EQ(after.HeldOf(bucket), before.HeldOf(bucket));
    }
    for (size_t i = 0; i < before.records().size(); ++i) {
      ASSERT_EQ(after.records()[i].space, before.records()[i].space);
      ASSERT_EQ(after.records()[i].held_begin, before.records()[i].held_begin);
      ASSERT_EQ(after.records()[i].elems, before.records()[i].elems);
      ASSERT_EQ(after.records()[i].pieces.size(), before.records()[i].pieces.size());
    }
    // The new ones begin their own arenas.
    for (const UnitPlace& unit : after.units().subspan(before.units().size())) {
      ASSERT_EQ(unit.generation, round + 1);
      ASSERT_LE(unit.parameter_bytes.end,
                base::AlignUp(after.arenas().back().parameter_bytes, base::kFrameBytes));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomModel, testing::Range(0, 150));

}  // namespace
}  // namespace zerohold::layout
