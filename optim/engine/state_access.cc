// Reads and writes states by range.
#include "optim/engine/state_access.h"

#include <algorithm>

namespace zerohold::engine {
namespace {

layout::Range Intersect(layout::Range a, layout::Range b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// Calls visit(pointer to the state's elements, their range in the space) for all that this rank
// holds of it. In fp32 the compute copy is the master, so every rank holds all of that.
template <typename Visit>
void VisitHeld(const layout::Layout& layout, const ModelMemory& memory, const StateRange& what,
               Visit visit) {
  if (what.state == StateKind::kMaster) {
    visit(memory.Parameters(what.space) + what.range.begin, what.range);
    return;
  }
  const auto records = layout.records();
  for (size_t i = 0; i < records.size(); ++i) {
    if (records[i].space != what.space) continue;
    const auto record = static_cast<int64_t>(i);
    for (const layout::RecordPiece& piece : records[i].pieces) {
      const layout::Range held = Intersect(piece.range, what.range);
      if (held.size() == 0) continue;
      const int64_t at = piece.offset + held.begin - piece.range.begin;
      switch (what.state) {
        case StateKind::kMoment1:
          visit(memory.Moment1(record) + at, held);
          break;
        case StateKind::kMoment2:
          visit(memory.Moment2(record) + at, held);
          break;
        default:  // the reduced gradient lies in its own shard's place
          visit(memory.Gradients(what.space) + held.begin, held);
      }
    }
  }
}

// Which rank holds which bytes of `range`, offsets counted from its beginning.
std::vector<comm::Piece> Owners(const layout::Layout& layout, const StateRange& what, int world) {
  std::vector<comm::Piece> pieces;
  const layout::FlatSpace& space = layout.spaces()[what.space];
  for (int64_t i = 0; i < space.bucket_count; ++i) {
    const layout::Bucket bucket = layout.BucketAt(space.first_bucket + i);
    if (Intersect(bucket.range, what.range).size() == 0) continue;
    for (int rank = 0; rank < world; ++rank) {
      const layout::Range part = Intersect(layout.ShardOf(bucket, rank, world), what.range);
      if (part.size() == 0) continue;
      pieces.push_back({rank, (part.begin - what.range.begin) * int64_t{sizeof(float)},
                        part.size() * int64_t{sizeof(float)}});
    }
  }
  return pieces;
}

}  // namespace

absl::Status ReadState(comm::Communicator& communicator, const layout::Layout& layout,
                       const ModelMemory& memory, const StateRange& what, std::span<float> out) {
  VisitHeld(layout, memory, what, [&](const float* from, layout::Range held) {
    std::copy_n(from, held.size(), out.data() + held.begin - what.range.begin);
  });
  const int world = layout.config().update_world;
  if (what.state == StateKind::kMaster || world == 1) return absl::OkStatus();
  return communicator.AllGather({"Read"}, out.data(), Owners(layout, what, world));
}

void WriteState(const layout::Layout& layout, const ModelMemory& memory, const StateRange& what,
                std::span<const float> values) {
  VisitHeld(layout, memory, what, [&](float* to, layout::Range held) {
    std::copy_n(values.data() + held.begin - what.range.begin, held.size(), to);
  });
}

}  // namespace zerohold::engine
