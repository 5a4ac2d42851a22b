// Cuts records into tiles, and updates them.
#include "optim/engine/update_site.h"

#include <algorithm>

#include "optim/kernels/masters.h"

namespace zerohold::engine {
namespace {

// 64 KiB of each array: whole pages, several tiles to a thread in a record, and small enough beside
// the others in a core's cache.
constexpr int64_t kTileElems = 16384;

}  // namespace

UpdateSite::UpdateSite(const layout::Layout& layout, const ModelMemory& memory,
                       const EngineOptions& options, int threads)
    : layout_(layout),
      memory_(memory),
      rule_(options.rule),
      master_(options.master),
      instruction_set_(options.instruction_set == InstructionSet::kBest
                           ? kernels::BestInstructionSet()
                           : options.instruction_set),
      updates_(layout.spaces().size(), nullptr),
      pool_(threads) {
  for (size_t i = 0; i < updates_.size(); ++i) {
    if (layout.spaces()[i].frozen) continue;
    const SpaceMemory& space = memory.space(static_cast<int32_t>(i));
    updates_[i] = kernels::SelectUpdate({.rule = rule_,
                                         .gradient = space.result.dtype,
                                         .copy = space.copy.dtype,
                                         .master = master_},
                                        instruction_set_);
  }
  for (const layout::Record& record : layout.records()) {
    const size_t first = tiles_.size();
    for (const layout::RecordPiece& piece : record.pieces) {
      CutTiles(layout.spaces()[record.space], piece.range, record.held_begin + piece.offset);
    }
    records_.push_back({first, tiles_.size() - first});
  }
  constants_.resize(options.groups.size());
}

// Neighbours of one group are one run, with the padding behind them: there all operands are zero,
// and stay so.
void UpdateSite::CutTiles(const layout::FlatSpace& space, layout::Range range,
                          int64_t held_offset) {
  const auto& parameters = space.parameters;
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
    if (end > begin) AddTiles(held_offset + begin - range.begin, {begin, end}, group);
    begin = std::max(begin, end);
  }
}

void UpdateSite::AddTiles(int64_t held_offset, layout::Range range, int group) {
  for (int64_t begin = range.begin; begin < range.end;) {
    const int64_t elems = std::min(kTileElems, range.end - begin);
    tiles_.push_back({held_offset, begin, elems, group});
    held_offset += elems;
    begin += elems;
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
  pool_.ParallelFor(static_cast<int64_t>(records_[record].count), &UpdateTile, this);
}

void UpdateSite::UpdateTile(void* self, int64_t index) {
  const auto& site = *static_cast<UpdateSite*>(self);
  const Tile& tile = site.tiles_[site.records_[site.record_].first + index];
  const int32_t space = site.layout_.records()[site.record_].space;
  const SpaceMemory& memory = site.memory_.space(space);
  const int64_t held = tile.held_offset;
  const int64_t master_bytes =
      kernels::MasterBytes({.copy = memory.copy.dtype, .master = site.master_});
  const auto moment = [&](float* base) { return base == nullptr ? nullptr : base + held; };
  site.updates_[space](
      site.constants_[tile.group],
      {.master = memory.master == nullptr ? nullptr : memory.master + held * master_bytes,
       .copy = memory.copy.At(tile.space_offset, held),
       .moment1 = moment(memory.moment1),
       .moment2 = moment(memory.moment2),
       .gradient = memory.result.At(tile.space_offset, held),
       .elems = tile.elems});
}

}  // namespace zerohold::engine
