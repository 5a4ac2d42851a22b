// Cuts records into tiles, and updates them.
#include "optim/engine/update_site.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "optim/kernels/masters.h"
#include "src/telemetry/trace.h"

namespace zerohold::engine {
namespace {

// 64 KiB of each array: whole pages, several tiles to a thread in a record, and small enough beside
// the others in a core's cache.
constexpr int64_t kTileElems = 16384;

}  // namespace

UpdateSite::UpdateSite(const Model& model, const EngineOptions& options, int threads)
    : layout_(model.layout),
      memory_(model.memory),
      records_(model.records),
      rule_(options.rule),
      master_(options.master),
      instruction_set_(options.instruction_set == InstructionSet::kBest
                           ? kernels::BestInstructionSet()
                           : options.instruction_set),
      updates_(layout_.spaces().size(), nullptr),
      pool_(threads),
      update_rate_(options.offload.update_rate) {
  for (size_t i = 0; i < updates_.size(); ++i) {
    if (layout_.spaces()[i].frozen) continue;
    const SpaceMemory& space = memory_.space(static_cast<int32_t>(i));
    updates_[i] = kernels::SelectUpdate({.rule = rule_,
                                         .gradient = space.result.dtype,
                                         .copy = space.copy.dtype,
                                         .master = master_},
                                        instruction_set_);
  }
  for (const layout::Record& record : layout_.records()) {
    const size_t first = tiles_.size();
    for (const layout::RecordPiece& piece : record.pieces) CutTiles(record, piece);
    tiles_of_.push_back({first, tiles_.size() - first});
  }
  constants_.resize(options.groups.size());
  for (const layout::Record& record : layout_.records()) {
    const DType dtype = layout_.spaces()[record.space].dtype;
    state_bytes_.push_back(record.elems * StateBytes(options, dtype));
  }
}

// Neighbours of one group are one run, with the padding behind them: there all operands are zero,
// and stay so.
void UpdateSite::CutTiles(const layout::Record& record, const layout::RecordPiece& piece) {
  const layout::Range range = piece.range;
  const auto& parameters = layout_.spaces()[record.space].parameters;
  auto next = std::upper_bound(parameters.begin(), parameters.end(), range.begin,
                               [](int64_t begin, const layout::FlatParameter& parameter) {
                                 return begin < parameter.begin;
                               });
  // The parameter, or its padding, that holds the first element.
  if (next != parameters.begin()) --next;
  for (int64_t begin = range.begin; begin < range.end;) {
    const int group = next->group;
    while (next != parameters.end() && next->group == group) ++next;
    const int64_t end = next == parameters.end() ? range.end : std::min(range.end, next->begin);
    const int64_t offset = piece.offset + begin - range.begin;
    AddTiles({record.held_begin + offset, offset, begin, 0, group}, end);
    begin = std::max(begin, end);
  }
}

// From the first element of `tile` to `end` of the space.
void UpdateSite::AddTiles(Tile tile, int64_t end) {
  while (tile.space_offset < end) {
    tile.elems = std::min(kTileElems, end - tile.space_offset);
    tiles_.push_back(tile);
    tile.held_offset += tile.elems;
    tile.record_offset += tile.elems;
    tile.space_offset += tile.elems;
  }
}

void UpdateSite::Prepare(std::span<const GroupOptions> groups, double learning_rate_factor,
                         double gradient_scale) {
  groups_.assign(groups.begin(), groups.end());
  learning_rate_factor_ = learning_rate_factor;
  gradient_scale_ = gradient_scale;
  constants_step_ = 0;
}

void UpdateSite::Update(int64_t record, int64_t step) {
  if (constants_step_ != step) {
    for (size_t i = 0; i < groups_.size(); ++i) {
      constants_[i] = kernels::MakeConstants(rule_, groups_[i],
                                             groups_[i].learning_rate * learning_rate_factor_, step,
                                             gradient_scale_);
    }
    constants_step_ = step;
  }
  record_ = record;
  const int64_t begin_ns = telemetry::NowNs();
  pool_.ParallelFor(static_cast<int64_t>(tiles_of_[record].count), &UpdateTile, this);
  if (update_rate_ > 0.0) Throttle(record, begin_ns);
}

// As a processor of the set rate would take, one record after the other.
void UpdateSite::Throttle(int64_t record, int64_t begin_ns) {
  constexpr double kLongest = 1e9;  // seconds
  const double seconds =
      std::min(static_cast<double>(state_bytes_[record]) / update_rate_, kLongest);
  free_ns_ = std::max(free_ns_, begin_ns) + static_cast<int64_t>(seconds * 1e9);
  const int64_t left_ns = free_ns_ - telemetry::NowNs();
  if (left_ns > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left_ns));
}

void UpdateSite::UpdateTile(void* self, int64_t index) {
  const auto& site = *static_cast<UpdateSite*>(self);
  const Tile& tile = site.tiles_[site.tiles_of_[site.record_].first + index];
  const int32_t space = site.layout_.records()[site.record_].space;
  const SpaceMemory& memory = site.memory_.space(space);
  const RecordArrays& arrays = site.records_.At(site.record_);
  const int64_t held = tile.held_offset;
  const int64_t master_bytes =
      kernels::MasterBytes({.copy = memory.copy.dtype, .master = site.master_});
  const auto moment = [&](float* base) {
    return base == nullptr ? nullptr : base + tile.record_offset;
  };
  // In the record's slot, or with the space's arrays.
  const auto at = [&](std::byte* in_slot, const Array& in_memory) {
    return in_slot == nullptr ? in_memory.At(tile.space_offset, held)
                              : in_slot + tile.record_offset * SizeOf(in_memory.dtype);
  };
  site.updates_[space](
      site.constants_[tile.group],
      {.master =
           arrays.master == nullptr ? nullptr : arrays.master + tile.record_offset * master_bytes,
       .copy = at(arrays.copy, memory.copy),
       .moment1 = moment(arrays.moment1),
       .moment2 = moment(arrays.moment2),
       .gradient = at(arrays.gradient, memory.result),
       .elems = tile.elems});
}

}  // namespace zerohold::engine
