// Which rank owns which elements, and at which byte they lie. Pure: no device, file, thread or
// clock; the same input gives the same layout on every rank, and only `rank` picks whose records
// are listed.
//
// Invariants:
//  1. A unit's parameters of one dtype, communicator, norm_weight, mean_ranks and frozenness form
//     one flat space, in the unit's order, but for atomic ones, which have one each; each begins at
//     a multiple of 64 elements, the space ends at a multiple of 256.
//  2. Buckets cut a flat space every bucket_elems; shards cut a bucket. All borders are multiples
//     of 256.
//  3. The shards of a bucket, one for each rank of its communicator, are disjoint and cover it,
//     each in one piece, evenly; a shard may be empty. Which rank has which part turns by one from
//     bucket to bucket, so that buckets with fewer blocks than ranks do not all fall to the same
//     rank: shards need not ascend with the rank. All buckets of an atomic parameter fall to one
//     rank, the one with the fewest such elements so far; they are as short as other buckets'
//     shards, so that staging does not grow.
//  4. Records cut the concatenation of this rank's update ranges in a flat space every
//     record_elems.
//  5. In the arenas, units whose memory stays lie end to end from 0; each of the others begins at
//     a multiple of 2 MiB, so that its frame can be moved under it. A generation of units has
//     arenas of its own.
//  6. Offsets are 64-bit; nothing is stored per element, and per shard only what this rank owns.
//  7. Units that are appended, as a generation of their own, change nothing of those before them.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "zerohold/tensor.h"

namespace zerohold::layout {

struct CheckedInput;

// Elements [begin, end) of a flat space.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

struct FlatParameter {
  ParameterId id;
  int64_t begin;  // in the flat space
  int64_t elems;  // true ones, without padding
  int group;
};

struct FlatSpace {
  UnitId unit;
  DType dtype;
  int communicator;
  double norm_weight;
  int mean_ranks;
  bool frozen;
  int owner;                       // of an atomic parameter: a rank of the communicator; else -1
  int64_t elems;                   // padded to 256
  int64_t parameter_offset_bytes;  // in its generation's arena of parameters
  int64_t gradient_offset_bytes;   // in its arena of gradients; -1 when frozen
  int64_t first_bucket;            // index over all spaces
  int64_t first_number;            // of that bucket; see Bucket
  int64_t bucket_count;
  int64_t bucket_elems;  // of each but the last
  int64_t held_elems;    // of this rank's update ranges, all of them
  std::vector<FlatParameter> parameters;
};

struct Bucket {
  int32_t space;
  int64_t index;   // over all spaces
  int64_t number;  // over those of its communicator, whose ranks have it in common
  Range range;     // in its space
};

// A contiguous part of a record: `range` of the flat space lies at `offset` in each of the record's
// arrays.
struct RecordPiece {
  Range range;
  int64_t offset;
};

struct Record {
  int32_t space;
  int64_t held_begin;  // elements of this rank's update ranges in the space that come before
  int64_t elems;       // of each state array
  std::vector<RecordPiece> pieces;
};

// One rank among those of a communicator.
struct Membership {
  int world = 1;
  int rank = 0;
};

struct LayoutConfig {
  std::vector<Membership> communicators = {{}};
  // Each rank updates its shards; else everything (stage 0).
  bool shard_update = true;
  int64_t bucket_elems = int64_t{1} << 20;    // rounded up to a multiple of 256
  int64_t record_elems = int64_t{256} << 10;  // rounded up to a multiple of 256
  // Which units have memory only while they need it: parameters of all with at least
  // `persistence_threshold_elems`, gradients of all that have some.
  bool parameter_frames = false;
  bool gradient_frames = false;
  int64_t persistence_threshold_elems = 0;
  // The first unit of every generation but the first: units that are appended together.
  std::vector<UnitId> generations = {};
};

// One generation's arenas, bytes: addresses in all, and the part at their beginning whose memory
// stays.
struct ArenaSizes {
  int64_t parameter_bytes = 0;
  int64_t gradient_bytes = 0;
  int64_t resident_parameter_bytes = 0;
  int64_t resident_gradient_bytes = 0;
  bool operator==(const ArenaSizes&) const = default;
};

// One unit's part of its generation's arenas, bytes; whole pages of 2 MiB when framed.
struct UnitPlace {
  int first_space;
  int last_space;  // exclusive: spaces of a unit are consecutive
  bool parameters_framed;
  bool gradients_framed;
  Range parameter_bytes;
  Range gradient_bytes;
  // The first and the last unit of the list that touch its parameters: itself, or those that use
  // them. A backward pass in reverse order begins its gradients with the last one and has them
  // whole with the first.
  UnitId first_touch;
  UnitId last_touch;
  int generation = 0;
};

class Layout {
 public:
  // Errors: InvalidArgument naming the parameter or unit (empty or repeated names, negative
  // extents, more than 2^62 elements, or bytes in all, a norm_weight that is not finite and > 0,
  // negative indices, a parameter in no unit or in two, unknown names, `uses` of an own, repeated
  // or unknown one), or the field of the config.
  static absl::StatusOr<Layout> Create(const LayoutConfig& config,
                                       std::span<const ParameterSpec> parameters,
                                       std::span<const UnitSpec> units);

  std::span<const FlatSpace> spaces() const { return spaces_; }
  std::span<const UnitPlace> units() const { return units_; }

  // Where a parameter lies: its space and its range there.
  struct Place {
    int32_t space;
    Range range;
  };
  Place PlaceOf(ParameterId id) const { return places_[id]; }

  int64_t bucket_count() const { return bucket_count_; }
  Bucket BucketAt(int64_t index) const;  // O(log spaces)
  // Among the ranks that hold the space.
  const Membership& MembershipIn(int32_t space) const {
    return config_.communicators[spaces_[space].communicator];
  }
  // The part of a bucket that a rank of its communicator owns; this rank's.
  Range ShardOf(const Bucket& bucket, int rank) const;
  Range OwnShardOf(const Bucket& bucket) const {
    return ShardOf(bucket, MembershipIn(bucket.space).rank);
  }
  // This rank's update ranges of a space, end to end: where the bucket's begins among them, and its
  // range.
  int64_t HeldBegin(const Bucket& bucket) const { return held_begin_[bucket.index]; }
  Range HeldOf(const Bucket& bucket) const {
    return config_.shard_update ? OwnShardOf(bucket) : bucket.range;
  }
  // The longest shard of any bucket, elements; sizes staging.
  int64_t MaxShardElems() const;

  // The records this rank updates, space by space.
  std::span<const Record> records() const { return records_; }

  // By generation; at least one.
  std::span<const ArenaSizes> arenas() const { return arenas_; }
  int64_t total_elems() const { return total_elems_; }

  const LayoutConfig& config() const { return config_; }  // as rounded up

 private:
  void PlaceUnit(UnitId unit, const CheckedInput& input, std::span<const ParameterSpec> parameters);
  void NoteUses(const CheckedInput& input);
  absl::Status CutBuckets();
  void ChooseOwner(FlatSpace& space);
  void PlaceArenas();
  void PlaceGeneration(std::span<UnitPlace> units);
  void CutRecords(int32_t space);
  Bucket BucketIn(int32_t space, int64_t index) const;

  LayoutConfig config_;
  std::vector<FlatSpace> spaces_;
  std::vector<UnitPlace> units_;
  std::vector<Place> places_;
  std::vector<Record> records_;
  std::vector<std::vector<int64_t>> owned_elems_;  // atomic ones, by communicator and rank
  std::vector<int64_t> numbers_;                   // next bucket's, by communicator
  int64_t bucket_count_ = 0;
  std::vector<int64_t> held_begin_;  // by bucket
  std::vector<ArenaSizes> arenas_;
  int64_t total_elems_ = 0;
};

// One line per parameter of a communicator, and per unit that has one, in order, with all that must
// agree over its ranks; rank-independent. Two ranks whose lines differ must not work together, and
// the first differing line says why.
std::string Describe(std::span<const ParameterSpec> parameters, std::span<const UnitSpec> units,
                     int communicator);

}  // namespace zerohold::layout
