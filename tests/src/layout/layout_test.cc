// What a layout looks like, in cases small enough to be written down.
#include "src/layout/layout.h"

#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "src/base/align.h"
#include "tests/src/layout/models.h"

namespace zerohold::layout {
namespace {

TEST(Layout, PartsOfAUnitThatDifferGetSpacesInOrderOfAppearance) {
  std::vector<ParameterSpec> parameters = {
      Parameter("a", {3, 5}), Parameter("b", {70}, DType::kBFloat16),
      Parameter("c", {65}),   Parameter("d", {2}),
      Parameter("e", {}),     Parameter("f", {1})};
  parameters[3].frozen = true;
  parameters[4].norm_weight = 0.5;
  parameters[5].communicator = 1;
  const Layout layout = MakeLayout({.communicators = {{}, {}}}, parameters, OneUnit(parameters));
  const auto spaces = layout.spaces();
  ASSERT_EQ(spaces.size(), 5u);
  EXPECT_EQ(layout.units()[0].first_space, 0);
  EXPECT_EQ(layout.units()[0].last_space, 5);
  ASSERT_EQ(spaces[0].parameters.size(), 2u);  // a and c
  EXPECT_EQ(layout.PlaceOf(2).space, 0);
  EXPECT_EQ(layout.PlaceOf(2).range, (Range{64, 129}));
  EXPECT_EQ(spaces[1].dtype, DType::kBFloat16);
  EXPECT_TRUE(spaces[2].frozen);
  EXPECT_EQ(spaces[2].gradient_offset_bytes, -1);
  EXPECT_EQ(spaces[2].bucket_count, 1);
  EXPECT_EQ(spaces[3].norm_weight, 0.5);
  EXPECT_EQ(spaces[4].communicator, 1);
  EXPECT_EQ(layout.total_elems(), 15 + 70 + 65 + 2 + 1 + 1);
  EXPECT_EQ(layout.bucket_count(), 5);
}

TEST(Layout, SpacesLieEndToEndOnBlocksOfTheirDtype) {
  const std::vector<ParameterSpec> parameters = {Parameter("a", {1}, DType::kBFloat16),
                                                 Parameter("b", {257}),
                                                 Parameter("c", {1}, DType::kFloat16)};
  const Layout layout = MakeLayout({}, parameters, OneUnit(parameters));
  EXPECT_EQ(layout.spaces()[0].parameter_offset_bytes, 0);     // 512 bytes
  EXPECT_EQ(layout.spaces()[1].parameter_offset_bytes, 1024);  // 512 elements
  EXPECT_EQ(layout.spaces()[2].parameter_offset_bytes, 3072);
  EXPECT_EQ(layout.arenas()[0].parameter_bytes, 4096);
  EXPECT_EQ(layout.arenas()[0].gradient_bytes, 4096);
}

TEST(Layout, FrozenSpacesTakeNoGradientAddresses) {
  std::vector<ParameterSpec> parameters = {Parameter("a", {5000}), Parameter("b", {10})};
  parameters[0].frozen = true;
  const Layout layout = MakeLayout({}, parameters, OneUnit(parameters));
  EXPECT_EQ(layout.spaces()[1].gradient_offset_bytes, 0);
  EXPECT_EQ(layout.arenas()[0].gradient_bytes, 4096);
  ASSERT_EQ(layout.records().size(), 1u);
  EXPECT_EQ(layout.records()[0].space, 1);
}

TEST(Layout, NothingIsLegal) {
  const Layout none = MakeLayout({}, {}, {});
  EXPECT_EQ(none.bucket_count(), 0);
  EXPECT_EQ(none.MaxShardElems(), 0);
  std::vector<UnitSpec> units(1);
  units[0].name = "empty";
  EXPECT_EQ(MakeLayout({}, {}, units).units()[0].last_space, 0);
  const std::vector<ParameterSpec> parameters = {Parameter("a", {0})};
  const Layout empty = MakeLayout({}, parameters, OneUnit(parameters));
  EXPECT_EQ(empty.spaces()[0].elems, 0);
  EXPECT_EQ(empty.arenas()[0].parameter_bytes, 0);
  EXPECT_TRUE(empty.records().empty());
}

TEST(Layout, SmallBucketsSpreadOverTheRanks) {
  constexpr int kWorld = 7;
  std::vector<ParameterSpec> parameters;
  std::vector<UnitSpec> units(1000);
  for (int i = 0; i < 1000; ++i) {
    units[i].name = parameters.emplace_back(Parameter(absl::StrCat("p", i), {10})).name;
    units[i].parameters = {units[i].name};
  }
  for (int rank = 0; rank < kWorld; ++rank) {
    const size_t records = MakeLayout(Sharded(kWorld, rank), parameters, units).records().size();
    EXPECT_GE(records, 1000u / kWorld);
    EXPECT_LE(records, 1000u / kWorld + 1);
  }
}

TEST(Layout, PiecesThatTouchAreOne) {
  const std::vector<ParameterSpec> parameters = {Parameter("a", {256 * 64})};
  LayoutConfig config;
  config.communicators = {{4, 3}};
  config.shard_update = false;  // stage 0
  config.bucket_elems = 512;
  config.record_elems = 1 << 20;
  const Layout whole = MakeLayout(config, parameters, OneUnit(parameters));
  ASSERT_EQ(whole.records().size(), 1u);
  ASSERT_EQ(whole.records()[0].pieces.size(), 1u);
  EXPECT_EQ(whole.records()[0].pieces[0].range, (Range{0, 256 * 64}));
}

TEST(Layout, SizesAreRoundedUpToBlocks) {
  LayoutConfig config;
  config.bucket_elems = 1;
  config.record_elems = 257;
  const Layout layout = MakeLayout(config, {}, {});
  EXPECT_EQ(layout.config().bucket_elems, 256);
  EXPECT_EQ(layout.config().record_elems, 512);
}

TEST(Layout, RefusesAConfigThatIsNone) {
  const auto refused = [](auto change) {
    LayoutConfig config;
    config.communicators = {{2, 0}, {1, 0}};
    change(config);
    return std::string(Layout::Create(config, {}, {}).status().message());
  };
  using testing::HasSubstr;
  EXPECT_THAT(refused([](LayoutConfig& c) { c.communicators[1].world = 0; }),
              HasSubstr("world is 0"));
  EXPECT_THAT(refused([](LayoutConfig& c) { c.communicators[0].rank = 2; }),
              HasSubstr("rank is 2"));
  EXPECT_THAT(refused([](LayoutConfig& c) { c.bucket_elems = 0; }), HasSubstr("bucket_elems is 0"));
  EXPECT_THAT(refused([](LayoutConfig& c) { c.record_elems = INT64_MAX; }), HasSubstr("2^61"));
  EXPECT_THAT(refused([](LayoutConfig& c) { c.generations = {1}; }),
              HasSubstr("a generation begins at unit 1; it is in [0, 0]"));
}

// Each change of a good model, and what the refusal says.
TEST(Layout, RefusesBadListsByName) {
  using Change = void (*)(std::vector<ParameterSpec>&, std::vector<UnitSpec>&);
  constexpr int64_t kHuge = int64_t{1} << 40;
  const std::vector<std::pair<const char*, Change>> rows = {
      {"parameter 1 has an empty name", [](auto& p, auto&) { p[1].name = ""; }},
      {"parameter \"a\" is listed twice", [](auto& p, auto&) { p[1].name = "a"; }},
      {"parameter \"b\" has the negative extent -3",
       [](auto& p, auto&) {
         p[1].shape = {0, -3};
       }},
      {"parameter \"b\" has more than 2^62",
       [](auto& p, auto&) {
         p[1].shape = {kHuge, kHuge};
       }},
      {"parameter \"b\" the model has more than 2^62 bytes",
       [](auto& p, auto&) {
         p[0].shape = p[1].shape = {kHuge, kHuge >> 20};
       }},
      {"parameter \"b\" has norm_weight 0", [](auto& p, auto&) { p[1].norm_weight = 0; }},
      {"parameter \"b\" has the negative group -1", [](auto& p, auto&) { p[1].group = -1; }},
      {"parameter \"b\" has the negative communicator",
       [](auto& p, auto&) { p[1].communicator = -1; }},
      {"parameter \"b\" has the unknown dtype 9", [](auto& p, auto&) { p[1].dtype = DType{9}; }},
      {"unit 1 has an empty name", [](auto&, auto& u) { u[1].name = ""; }},
      {"unit \"first\" is listed twice", [](auto&, auto& u) { u[1].name = "first"; }},
      {"parameter \"b\" is in no unit", [](auto&, auto& u) { u[1].parameters.clear(); }},
      {"parameter \"a\" is in unit \"first\" and in unit \"second\"",
       [](auto&, auto& u) { u[1].parameters.push_back("a"); }},
      {"unit \"second\" lists parameter \"b\" twice",
       [](auto&, auto& u) { u[1].parameters.push_back("b"); }},
      {"unit \"second\" lists the unknown parameter \"z\"",
       [](auto&, auto& u) { u[1].parameters.push_back("z"); }},
      {"unit \"first\" uses the unknown parameter \"z\"",
       [](auto&, auto& u) { u[0].uses = {"z"}; }},
      {"unit \"first\" uses its own parameter \"a\"", [](auto&, auto& u) { u[0].uses = {"a"}; }},
      {"unit \"first\" uses twice the parameter \"b\"",
       [](auto&, auto& u) {
         u[0].uses = {"b", "b"};
       }},
  };
  for (const auto& [message, change] : rows) {
    std::vector<ParameterSpec> parameters = {Parameter("a", {4}), Parameter("b", {5})};
    std::vector<UnitSpec> units = {{"first", {"a"}, {}}, {"second", {"b"}, {"a"}}};
    ASSERT_TRUE(Layout::Create({}, parameters, units).ok());
    change(parameters, units);
    const absl::Status status = Layout::Create({}, parameters, units).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(message));
  }
}

TEST(Layout, AnEmptyTensorIsEmptyHoweverLargeItsOtherExtents) {
  const std::vector<ParameterSpec> parameters = {Parameter("a", {INT64_MAX, 0, INT64_MAX})};
  EXPECT_EQ(MakeLayout({}, parameters, OneUnit(parameters)).total_elems(), 0);
}

TEST(Describe, HasALinePerParameterAndUnit) {
  std::vector<ParameterSpec> parameters = {Parameter("w", {5, 3}), Parameter("\n", {})};
  parameters[1].frozen = true;
  std::vector<UnitSpec> units = {{"head", {"w", "\n"}, {}}, {"tail", {}, {"w"}}};
  EXPECT_EQ(Describe(parameters, units, 0),
            "parameter 0: \"w\" [5, 3] fp32 group 0 norm_weight 1 mean_ranks 0\n"
            "parameter 1: \"\\n\" [] fp32 group 0 frozen norm_weight 1 mean_ranks 0\n"
            "unit 0: \"head\" holds \"w\" \"\\n\"\n"
            "unit 1: \"tail\" holds nothing uses \"w\"\n");
}

// Users of another communicator's parameters, and their names, are not shown, but what they do to
// the order of reductions is.
TEST(Describe, ShowsAnOrderOfReductionsThatIsNotTheLists) {
  std::vector<ParameterSpec> parameters = {Parameter("a", {4}), Parameter("b", {4}),
                                           Parameter("expert", {4})};
  parameters[2].communicator = 1;
  const auto described = [&](const char* user, bool first) {
    std::vector<UnitSpec> units = {
        {"early", {"a"}, {}}, {user, {}, {"expert"}}, {"late", {"b", "expert"}, {}}};
    if (first) std::swap(units[0], units[1]);
    const std::string text = Describe(parameters, units, 0);
    return text.substr(text.find("unit 0"));
  };
  const std::string list =
      "unit 0: \"early\" holds \"a\"\n"
      "unit 1: \"late\" holds \"b\"\n";
  EXPECT_EQ(described("user", false), list);
  EXPECT_EQ(described("user", true), list + "reduced in the order \"early\" \"late\"\n");
  EXPECT_EQ(described("other", true), described("user", true));
  parameters[1].frozen = true;  // reduces nothing
  EXPECT_EQ(described("user", true), list);
}

TEST(Describe, ShowsEveryDifference) {
  const std::vector<ParameterSpec> parameters = {Parameter("a", {4}), Parameter("b", {4})};
  const std::vector<UnitSpec> units = {{"u", {"a", "b"}, {}}, {"v", {}, {"a"}}};
  using Change = void (*)(std::vector<ParameterSpec>&, std::vector<UnitSpec>&);
  const std::vector<Change> changes = {
      [](auto&, auto&) {},  // the model itself
      [](auto& p, auto&) { p[0].name = "c"; },
      [](auto& p, auto&) {
        p[0].shape = {4, 1};
      },
      [](auto& p, auto&) { p[0].dtype = DType::kFloat16; },
      [](auto& p, auto&) { p[0].group = 1; },
      [](auto& p, auto&) { p[0].frozen = true; },
      [](auto& p, auto&) { p[0].norm_weight = std::nextafter(1.0, 2.0); },
      [](auto& p, auto&) { p[0].communicator = 1; },
      [](auto& p, auto&) { p[0].mean_ranks = 1; },
      [](auto& p, auto&) { p[0].atomic = true; },
      [](auto& p, auto&) { std::swap(p[0], p[1]); },
      [](auto& p, auto&) { p.pop_back(); },
      [](auto&, auto& u) { u[0].name = "w"; },
      [](auto&, auto& u) { std::swap(u[0].parameters[0], u[0].parameters[1]); },
      [](auto&, auto& u) { u[0].parameters = {"a\" \"b"}; },
      [](auto&, auto& u) { u[1].uses.clear(); },
      [](auto&, auto& u) { u.pop_back(); },
  };
  std::map<std::string, size_t> seen;
  for (size_t i = 0; i < changes.size(); ++i) {
    std::vector<ParameterSpec> p = parameters;
    std::vector<UnitSpec> u = units;
    changes[i](p, u);
    const auto [known, fresh] = seen.emplace(Describe(p, u, 0), i);
    EXPECT_TRUE(fresh) << "changes " << known->second << " and " << i << " look alike";
  }
}

// Ranks need only agree on what they share.
TEST(Describe, LeavesOutOtherCommunicators) {
  std::vector<ParameterSpec> parameters = {Parameter("dense", {4}), Parameter("expert", {4})};
  parameters[1].communicator = 1;
  const std::vector<UnitSpec> units = {{"block", {"dense", "expert"}, {}}, {"e", {}, {"expert"}}};
  EXPECT_EQ(Describe(parameters, units, 0),
            "parameter 0: \"dense\" [4] fp32 group 0 norm_weight 1 mean_ranks 0\n"
            "unit 0: \"block\" holds \"dense\"\n");
  EXPECT_EQ(Describe(parameters, units, 1),
            "parameter 0: \"expert\" [4] fp32 group 0 norm_weight 1 mean_ranks 0\n"
            "unit 0: \"block\" holds \"expert\"\n"
            "unit 1: \"e\" holds nothing uses \"expert\"\n");
}

// Owners are spread by what they have so far, in the order of the units.
TEST(Layout, AtomicParametersHaveOneOwnerEach) {
  std::vector<ParameterSpec> parameters = {Parameter("a", {3000}), Parameter("b", {1000}),
                                           Parameter("c", {1000}), Parameter("d", {500})};
  for (ParameterSpec& parameter : parameters) parameter.atomic = true;
  LayoutConfig config = Sharded(2, 1);
  config.bucket_elems = 1024;
  const Layout layout = MakeLayout(config, parameters, OneUnit(parameters));
  ASSERT_EQ(layout.spaces().size(), 4u);
  std::vector<int> owners;
  for (const FlatSpace& space : layout.spaces()) owners.push_back(space.owner);
  EXPECT_EQ(owners, (std::vector<int>{0, 1, 1, 1}));
  EXPECT_EQ(layout.spaces()[0].bucket_count, 6);
  EXPECT_EQ(layout.spaces()[0].held_elems, 0);
  EXPECT_EQ(layout.spaces()[1].held_elems, layout.spaces()[1].elems);
  EXPECT_EQ(layout.MaxShardElems(), 512);
}

// Framed units begin on frames of their own, behind those that stay; the arithmetic of spaces,
// buckets and records does not know it.
TEST(Layout, FramedUnitsBeginOnFrames) {
  const std::vector<ParameterSpec> parameters = {Parameter("a", {3000}), Parameter("b", {10}),
                                                 Parameter("c", {1 << 20})};
  const std::vector<UnitSpec> units = {{"u", {"a"}, {}}, {"v", {"b"}, {}}, {"w", {"c"}, {}}};
  const Layout plain = MakeLayout({}, parameters, units);
  const Layout framed = MakeLayout(
      {.parameter_frames = true, .gradient_frames = true, .persistence_threshold_elems = 1000},
      parameters, units);
  EXPECT_TRUE(framed.units()[0].parameters_framed);
  EXPECT_FALSE(framed.units()[1].parameters_framed);  // smaller than the threshold
  EXPECT_TRUE(framed.units()[1].gradients_framed);
  EXPECT_EQ(framed.arenas()[0].resident_parameter_bytes, 256 * 4);
  EXPECT_EQ(framed.units()[1].parameter_bytes, (Range{0, 256 * 4}));
  EXPECT_EQ(framed.units()[0].parameter_bytes, (Range{base::kFrameBytes, 2 * base::kFrameBytes}));
  EXPECT_EQ(framed.units()[2].parameter_bytes,
            (Range{2 * base::kFrameBytes, 4 * base::kFrameBytes}));
  EXPECT_EQ(framed.arenas()[0].parameter_bytes, 4 * base::kFrameBytes);
  EXPECT_EQ(framed.arenas()[0].resident_gradient_bytes, 0);
  ASSERT_EQ(framed.records().size(), plain.records().size());
  for (size_t i = 0; i < plain.records().size(); ++i) {
    EXPECT_EQ(framed.records()[i].pieces.front().range, plain.records()[i].pieces.front().range);
  }
}

// Units that stay, or are framed, lie at the same place of their own arenas as if they were alone.
TEST(Layout, AGenerationHasItsOwnArenas) {
  const std::vector<ParameterSpec> parameters = {Parameter("a", {3000}), Parameter("b", {10}),
                                                 Parameter("c", {1 << 20}), Parameter("d", {20})};
  const std::vector<UnitSpec> units = {
      {"u", {"a"}, {}}, {"v", {"b"}, {}}, {"w", {"c"}, {}}, {"x", {"d"}, {}}};
  const Layout layout = MakeLayout(
      {.parameter_frames = true, .persistence_threshold_elems = 1000, .generations = {2, 2, 4}},
      parameters, units);
  ASSERT_EQ(layout.arenas().size(), 4u);
  EXPECT_EQ(layout.units()[1].generation, 0);
  EXPECT_EQ(layout.units()[2].generation, 2);  // the second has no unit
  EXPECT_EQ(layout.arenas()[1], ArenaSizes());
  EXPECT_EQ(layout.arenas()[3], ArenaSizes());
  EXPECT_EQ(layout.units()[3].parameter_bytes, (Range{0, 256 * 4}));
  EXPECT_EQ(layout.units()[2].parameter_bytes, (Range{base::kFrameBytes, 3 * base::kFrameBytes}));
  EXPECT_EQ(layout.arenas()[2].parameter_bytes, 3 * base::kFrameBytes);
  EXPECT_EQ(layout.arenas()[2].resident_parameter_bytes, 256 * 4);
}

// Ranks of one communicator may hold more than others of another one: they cut what they share
// alike.
TEST(Layout, WhatOtherCommunicatorsHoldMovesNoShard) {
  const auto make = [](int64_t expert_elems, int rank) {
    std::vector<ParameterSpec> parameters = {Parameter("expert", {expert_elems}),
                                             Parameter("dense", {10000})};
    parameters[0].communicator = 1;
    return MakeLayout({.communicators = {{3, rank}, {1, 0}}, .bucket_elems = 2048}, parameters,
                      {{"u", {"expert"}, {}}, {"v", {"dense"}, {}}});
  };
  const Layout small = make(100, 0);
  const Layout large = make(5000, 1);
  for (int64_t i = 0; i < small.spaces()[1].bucket_count; ++i) {
    const Bucket one = small.BucketAt(small.spaces()[1].first_bucket + i);
    const Bucket other = large.BucketAt(large.spaces()[1].first_bucket + i);
    EXPECT_EQ(one.number, other.number);
    for (const int rank : {0, 1, 2}) {
      EXPECT_EQ(small.ShardOf(one, rank), large.ShardOf(other, rank)) << "bucket " << i;
    }
  }
}

TEST(Layout, HeldRangesLieEndToEnd) {
  const std::vector<ParameterSpec> parameters = {Parameter("a", {10000}), Parameter("b", {3000})};
  const Layout layout =
      MakeLayout({.communicators = {{3, 1}}, .bucket_elems = 2048, .record_elems = 512}, parameters,
                 OneUnit(parameters));
  int64_t held = 0;
  for (int64_t i = 0; i < layout.bucket_count(); ++i) {
    const Bucket bucket = layout.BucketAt(i);
    EXPECT_EQ(layout.HeldBegin(bucket), held);
    held += layout.HeldOf(bucket).size();
  }
  EXPECT_EQ(layout.spaces()[0].held_elems, held);
  int64_t begin = 0;
  for (const Record& record : layout.records()) {
    EXPECT_EQ(record.held_begin, begin);
    begin += record.elems;
  }
  EXPECT_EQ(begin, held);
}

}  // namespace
}  // namespace zerohold::layout
