// Plans in one pass over the parameters and one over the buckets, of which only what this rank
// updates is kept.
#include "src/layout/layout.h"

#include <absl/strings/str_cat.h>

#include <algorithm>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/layout/input.h"

namespace zerohold::layout {
namespace {

using base::AlignUp;
using base::CeilDiv;
using base::kBlockElems;

constexpr int64_t kMaxPieceElems = int64_t{1} << 61;
constexpr int64_t kMaxPieces = int64_t{1}
                               << 26;  // buckets, and records of a rank: a plan in memory

absl::Status CheckConfig(const LayoutConfig& config, int64_t units) {
  const auto refuse = [](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(why...));
  };
  for (const Membership& member : config.communicators) {
    if (member.world < 1) return refuse("world is ", member.world, "; it is >= 1");
    if (member.rank < 0 || member.rank >= member.world) {
      return refuse("rank is ", member.rank, "; it is in [0, ", member.world, ")");
    }
  }
  if (config.bucket_elems < 1 || config.bucket_elems > kMaxPieceElems) {
    return refuse("bucket_elems is ", config.bucket_elems, "; it is in [1, 2^61]");
  }
  if (config.record_elems < 1 || config.record_elems > kMaxPieceElems) {
    return refuse("record_elems is ", config.record_elems, "; it is in [1, 2^61]");
  }
  for (int64_t first = 0; const UnitId next : config.generations) {
    if (next < first || next > units) {
      return refuse("a generation begins at unit ", next, "; it is in [", first, ", ", units, "]");
    }
    first = next;
  }
  return absl::OkStatus();
}

bool BelongsTo(const FlatSpace& space, const ParameterSpec& parameter) {
  return space.owner < 0 && !parameter.atomic && space.dtype == parameter.dtype &&
         space.communicator == parameter.communicator &&
         space.norm_weight == parameter.norm_weight && space.mean_ranks == parameter.mean_ranks &&
         space.frozen == parameter.frozen;
}

FlatSpace EmptySpace(UnitId unit, const ParameterSpec& like) {
  return {.unit = unit,
          .dtype = like.dtype,
          .communicator = like.communicator,
          .norm_weight = like.norm_weight,
          .mean_ranks = like.mean_ranks,
          .frozen = like.frozen,
          .owner = like.atomic ? 0 : -1,  // any; see ChooseOwner
          .elems = 0,
          .parameter_offset_bytes = -1,
          .gradient_offset_bytes = -1,
          .first_bucket = 0,
          .first_number = 0,
          .bucket_count = 0,
          .bucket_elems = 0,
          .held_elems = 0,
          .parameters = {}};
}

// An arena that grows as units are placed in it.
struct Arena {
  int64_t end_bytes = 0;
  int64_t resident_bytes = 0;

  Range PlaceParameters(std::span<FlatSpace> spaces, bool framed) {
    return Place(framed, [&] {
      for (FlatSpace& space : spaces) space.parameter_offset_bytes = Reserve(space);
    });
  }
  Range PlaceGradients(std::span<FlatSpace> spaces, bool framed) {
    return Place(framed, [&] {
      for (FlatSpace& space : spaces) {
        if (!space.frozen) space.gradient_offset_bytes = Reserve(space);
      }
    });
  }

 private:
  // Each space begins on a multiple of a block of its dtype, so that shards in the arena are
  // aligned too.
  int64_t Reserve(const FlatSpace& space) {
    const int64_t elem_bytes = SizeOf(space.dtype);
    const int64_t begin_bytes = AlignUp(end_bytes, kBlockElems * elem_bytes);
    end_bytes = begin_bytes + space.elems * elem_bytes;
    return begin_bytes;
  }
  template <typename PlaceSpaces>
  Range Place(bool framed, PlaceSpaces place_spaces) {
    if (framed) end_bytes = AlignUp(end_bytes, base::kFrameBytes);
    const int64_t begin_bytes = end_bytes;
    place_spaces();
    if (framed) {
      end_bytes = AlignUp(end_bytes, base::kFrameBytes);
    } else {
      resident_bytes = end_bytes;
    }
    return {begin_bytes, end_bytes};
  }
};

void Append(Record& record, const Range& range) {
  if (!record.pieces.empty() && record.pieces.back().range.end == range.begin) {
    record.pieces.back().range.end = range.end;
  } else {
    record.pieces.push_back({range, record.elems});
  }
  record.elems += range.size();
}

}  // namespace

absl::StatusOr<Layout> Layout::Create(const LayoutConfig& config,
                                      std::span<const ParameterSpec> parameters,
                                      std::span<const UnitSpec> units) {
  ZH_RETURN_IF_ERROR(CheckConfig(config, static_cast<int64_t>(units.size())));
  ZH_ASSIGN_OR_RETURN(const CheckedInput input, CheckInput(parameters, units));
  for (const ParameterSpec& parameter : parameters) {
    if (parameter.communicator < std::ssize(config.communicators)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("parameter \"", parameter.name, "\" has communicator ", parameter.communicator,
                     ", but ", config.communicators.size(), " are given; give one for it"));
  }
  Layout layout;
  layout.config_ = config;
  layout.config_.bucket_elems = AlignUp(config.bucket_elems, kBlockElems);
  layout.config_.record_elems = AlignUp(config.record_elems, kBlockElems);
  layout.places_.resize(parameters.size());
  for (UnitId unit = 0; unit < static_cast<UnitId>(units.size()); ++unit) {
    layout.PlaceUnit(unit, input, parameters);
  }
  layout.NoteUses(input);
  ZH_RETURN_IF_ERROR(layout.CutBuckets());
  layout.PlaceArenas();
  for (int32_t space = 0; space < static_cast<int32_t>(layout.spaces_.size()); ++space) {
    layout.CutRecords(space);
  }
  return layout;
}

void Layout::PlaceUnit(UnitId unit, const CheckedInput& input,
                       std::span<const ParameterSpec> parameters) {
  const auto first = static_cast<int>(spaces_.size());
  for (const ParameterId id : input.units[unit]) {
    const ParameterSpec& spec = parameters[id];
    const int64_t elems = input.elems[id];
    auto space = std::find_if(spaces_.begin() + first, spaces_.end(),
                              [&](const FlatSpace& known) { return BelongsTo(known, spec); });
    if (space == spaces_.end()) space = spaces_.insert(space, EmptySpace(unit, spec));
    const int64_t begin = AlignUp(space->elems, base::kParameterAlignElems);
    space->parameters.push_back({id, begin, elems, spec.group});
    space->elems = begin + elems;
    places_[id] = {static_cast<int32_t>(space - spaces_.begin()), {begin, begin + elems}};
    total_elems_ += elems;
  }
  UnitPlace place = {first, static_cast<int>(spaces_.size()), false, false, {}, {}, unit, unit};
  int64_t elems = 0;
  int64_t gradient_elems = 0;
  for (int i = first; i < place.last_space; ++i) {
    elems += spaces_[i].elems;
    if (!spaces_[i].frozen) gradient_elems += spaces_[i].elems;
  }
  place.parameters_framed =
      config_.parameter_frames && elems > 0 && elems >= config_.persistence_threshold_elems;
  place.gradients_framed = config_.gradient_frames && gradient_elems > 0;
  units_.push_back(place);
}

void Layout::NoteUses(const CheckedInput& input) {
  for (UnitId user = 0; user < static_cast<UnitId>(input.uses.size()); ++user) {
    for (const ParameterId id : input.uses[user]) {
      UnitPlace& owner = units_[spaces_[places_[id].space].unit];
      owner.first_touch = std::min(owner.first_touch, user);
      owner.last_touch = std::max(owner.last_touch, user);
    }
  }
}

absl::Status Layout::CutBuckets() {
  numbers_.assign(config_.communicators.size(), 0);
  for (FlatSpace& space : spaces_) {
    const int64_t world = config_.communicators[space.communicator].world;
    space.elems = AlignUp(space.elems, kBlockElems);
    if (space.owner >= 0) ChooseOwner(space);
    space.bucket_elems = space.owner < 0
                             ? config_.bucket_elems
                             : kBlockElems * CeilDiv(config_.bucket_elems / kBlockElems, world);
    space.first_bucket = bucket_count_;
    space.bucket_count = CeilDiv(space.elems, space.bucket_elems);
    bucket_count_ += space.bucket_count;
    space.first_number = numbers_[space.communicator];
    numbers_[space.communicator] += space.bucket_count;
    const int64_t sharers = config_.shard_update && space.owner < 0 ? world : 1;
    const int64_t records = CeilDiv(space.elems, config_.record_elems) / sharers;
    if (bucket_count_ > kMaxPieces || records > kMaxPieces) {
      return absl::InvalidArgumentError(
          absl::StrCat("bucket_elems ", config_.bucket_elems, " and record_elems ",
                       config_.record_elems, " cut the parameters into more than ", kMaxPieces,
                       " pieces, which no plan holds: a flat space has ", space.elems,
                       " elements; give a smaller model, or more ranks, or larger pieces"));
    }
  }
  return absl::OkStatus();
}

void Layout::ChooseOwner(FlatSpace& space) {
  owned_elems_.resize(config_.communicators.size());
  std::vector<int64_t>& owned = owned_elems_[space.communicator];
  owned.resize(config_.communicators[space.communicator].world);
  const auto least = std::ranges::min_element(owned);
  *least += space.elems;
  space.owner = static_cast<int>(least - owned.begin());
}

void Layout::PlaceArenas() {
  const std::span units(units_);
  size_t first = 0;
  for (const UnitId next : config_.generations) {
    PlaceGeneration(units.subspan(first, next - first));
    first = next;
  }
  PlaceGeneration(units.subspan(first));
}

void Layout::PlaceGeneration(std::span<UnitPlace> units) {
  Arena parameters;
  Arena gradients;
  // First what stays, end to end, then the framed units, each in pages of its own.
  for (const bool framed : {false, true}) {
    for (UnitPlace& unit : units) {
      unit.generation = static_cast<int>(arenas_.size());
      const std::span spaces(spaces_.data() + unit.first_space, unit.last_space - unit.first_space);
      if (unit.parameters_framed == framed)
        unit.parameter_bytes = parameters.PlaceParameters(spaces, framed);
      if (unit.gradients_framed == framed)
        unit.gradient_bytes = gradients.PlaceGradients(spaces, framed);
    }
  }
  arenas_.push_back({.parameter_bytes = AlignUp(parameters.end_bytes, base::kPageBytes),
                     .gradient_bytes = AlignUp(gradients.end_bytes, base::kPageBytes),
                     .resident_parameter_bytes = parameters.resident_bytes,
                     .resident_gradient_bytes = gradients.resident_bytes});
}

// What this rank holds of the space, cut into records; frozen elements are held, but have none.
void Layout::CutRecords(int32_t space) {
  const int64_t first = spaces_[space].first_bucket;
  int64_t held = 0;
  bool full = true;
  for (int64_t index = first; index < first + spaces_[space].bucket_count; ++index) {
    Range left = HeldOf(BucketIn(space, index));
    held_begin_.push_back(held);
    held += left.size();
    while (left.size() > 0 && !spaces_[space].frozen) {
      if (full) records_.push_back({space, held - left.size(), 0, {}});
      Record& record = records_.back();
      const int64_t take = std::min(left.size(), config_.record_elems - record.elems);
      Append(record, {left.begin, left.begin + take});
      left.begin += take;
      full = record.elems == config_.record_elems;
    }
  }
  spaces_[space].held_elems = held;
}

Bucket Layout::BucketIn(int32_t space, int64_t index) const {
  const FlatSpace& flat = spaces_[space];
  const int64_t in_space = index - flat.first_bucket;
  const int64_t begin = in_space * flat.bucket_elems;
  return {.space = space,
          .index = index,
          .number = flat.first_number + in_space,
          .range = {begin, std::min(begin + flat.bucket_elems, flat.elems)}};
}

Bucket Layout::BucketAt(int64_t index) const {
  ZH_CHECK(index >= 0 && index < bucket_count_, index, bucket_count_);
  // The last space that begins at or before the index: those without a bucket begin where the next
  // does.
  const auto after = std::ranges::upper_bound(spaces_, index, {}, &FlatSpace::first_bucket);
  return BucketIn(static_cast<int32_t>(after - spaces_.begin()) - 1, index);
}

Range Layout::ShardOf(const Bucket& bucket, int rank) const {
  const int world = MembershipIn(bucket.space).world;
  ZH_CHECK(rank >= 0 && rank < world, rank, world);
  const int owner = spaces_[bucket.space].owner;
  if (owner >= 0)
    return {bucket.range.begin, owner == rank ? bucket.range.end : bucket.range.begin};
  const int64_t blocks = bucket.range.size() / kBlockElems;
  const int64_t part = (rank + bucket.number) % world;
  // floor(blocks * i / world), without the product that may not fit.
  const auto border = [&](int64_t i) {
    return bucket.range.begin + kBlockElems * (blocks / world * i + blocks % world * i / world);
  };
  return {border(part), border(part + 1)};
}

int64_t Layout::MaxShardElems() const {
  int64_t longest = 0;
  for (const FlatSpace& space : spaces_) {
    const int64_t blocks = std::min(space.elems, space.bucket_elems) / kBlockElems;
    const int sharers = space.owner < 0 ? config_.communicators[space.communicator].world : 1;
    longest = std::max(longest, kBlockElems * CeilDiv(blocks, sharers));
  }
  return longest;
}

}  // namespace zerohold::layout
