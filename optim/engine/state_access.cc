// Reads and writes states by range.
#include "optim/engine/state_access.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "src/base/convert.h"
#include "src/base/status_macros.h"

namespace zerohold::engine {
namespace {

layout::Range Intersect(layout::Range a, layout::Range b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

// Calls visit(bucket) for the buckets that touch the range.
template <typename Visit>
void VisitBuckets(const layout::Layout& layout, const StateRange& what, Visit visit) {
  const layout::FlatSpace& space = layout.spaces()[what.space];
  for (int64_t i = 0; i < space.bucket_count; ++i) {
    const layout::Bucket bucket = layout.BucketAt(space.first_bucket + i);
    if (Intersect(bucket.range, what.range).size() > 0) visit(bucket);
  }
}

// Calls visit(range, first held element) for each part of the range that this rank holds.
template <typename Visit>
void VisitHeld(const layout::Layout& layout, const StateRange& what, Visit visit) {
  VisitBuckets(layout, what, [&](const layout::Bucket& bucket) {
    const layout::Range held = layout.HeldOf(bucket);
    const layout::Range part = Intersect(held, what.range);
    if (part.size() > 0) visit(part, layout.HeldBegin(bucket) + part.begin - held.begin);
  });
}

// Which rank holds which bytes of `range`, as fp32, offsets counted from its beginning.
std::vector<comm::Piece> Owners(const layout::Layout& layout, const StateRange& what) {
  const int world = layout.MembershipIn(what.space).world;
  std::vector<comm::Piece> pieces;
  VisitBuckets(layout, what, [&](const layout::Bucket& bucket) {
    for (int rank = 0; rank < world; ++rank) {
      const layout::Range part = Intersect(layout.ShardOf(bucket, rank), what.range);
      if (part.size() == 0) continue;
      pieces.push_back({rank, (part.begin - what.range.begin) * int64_t{sizeof(float)},
                        part.size() * int64_t{sizeof(float)}});
    }
  });
  return pieces;
}

void Widen(const std::byte* from, DType dtype, int64_t elems, float* out) {
  const auto* bits = reinterpret_cast<const uint16_t*>(from);
  switch (dtype) {
    case DType::kFloat32:
      std::copy_n(reinterpret_cast<const float*>(from), elems, out);
      return;
    case DType::kBFloat16:
      for (int64_t i = 0; i < elems; ++i) out[i] = base::BFloat16ToFloat(bits[i]);
      return;
    case DType::kFloat16:
      for (int64_t i = 0; i < elems; ++i) out[i] = base::Float16ToFloat(bits[i]);
      return;
  }
}

}  // namespace

StateAccess::StateAccess(const layout::Layout& layout, const ModelMemory& memory, MasterForm master)
    : layout_(layout), memory_(memory), master_(master) {}

std::byte* StateAccess::MasterAt(const SpaceMemory& space, int64_t held) const {
  return space.master == nullptr ? nullptr
                                 : space.master + held * kernels::MasterBytes(Form(space));
}

kernels::WeightForm StateAccess::Form(const SpaceMemory& space) const {
  // A frozen parameter is what its copy says.
  return {space.copy.dtype, space.master == nullptr ? MasterForm::kFloat32 : master_};
}

void StateAccess::ReadHeld(const StateRange& what, layout::Range part, int64_t held,
                           float* out) const {
  const SpaceMemory& space = memory_.space(what.space);
  switch (what.state) {
    case StateKind::kMaster:
      if (space.master == nullptr) {
        Widen(space.copy.At(part.begin, held), space.copy.dtype, part.size(), out);
      } else {
        kernels::MastersToFloat(MasterAt(space, held), space.copy.At(part.begin, held), Form(space),
                                part.size(), out);
      }
      return;
    case StateKind::kMoment1:
      std::copy_n(space.moment1 + held, part.size(), out);
      return;
    case StateKind::kMoment2:
      std::copy_n(space.moment2 + held, part.size(), out);
      return;
    case StateKind::kGradient:
      Widen(space.result.At(part.begin, held), space.result.dtype, part.size(), out);
      return;
  }
}

absl::Status StateAccess::Read(comm::Communicator& communicator, const StateRange& what,
                               std::span<float> out) const {
  VisitHeld(layout_, what, [&](layout::Range part, int64_t held) {
    ReadHeld(what, part, held, out.data() + part.begin - what.range.begin);
  });
  if (!layout_.config().shard_update) return absl::OkStatus();
  return communicator.AllGather({"Read"}, out.data(), Owners(layout_, what));
}

bool StateAccess::HeldFinite(const StateRange& what) const {
  bool finite = true;
  std::vector<float> values;
  VisitHeld(layout_, what, [&](layout::Range part, int64_t held) {
    values.resize(part.size());
    ReadHeld(what, part, held, values.data());
    finite &= std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
  });
  return finite;
}

void StateAccess::Write(const StateRange& what, std::span<const float> values) const {
  const SpaceMemory& space = memory_.space(what.space);
  // Every rank has the values, so the copies of others' masters need no gather.
  const bool everyone = what.state == StateKind::kMaster && !space.copy.held;
  if (everyone) SetCopy(values, Form(space), space.copy.At(what.range.begin, 0));
  VisitHeld(layout_, what, [&](layout::Range part, int64_t held) {
    const std::span from = values.subspan(part.begin - what.range.begin, part.size());
    std::byte* const copy = space.copy.At(part.begin, held);
    switch (what.state) {
      case StateKind::kMaster:
        if (space.master == nullptr) return SetCopy(from, Form(space), copy);
        kernels::MastersFromFloat(from.data(), part.size(), Form(space), MasterAt(space, held),
                                  copy);
        return;
      case StateKind::kMoment1:
        std::copy(from.begin(), from.end(), space.moment1 + held);
        return;
      case StateKind::kMoment2:
        std::copy(from.begin(), from.end(), space.moment2 + held);
        return;
      case StateKind::kGradient:
        return;
    }
  });
}

// Rounds as an update does, without keeping what is lost.
void StateAccess::SetCopy(std::span<const float> values, kernels::WeightForm form,
                          std::byte* copy) {
  std::vector<std::byte> master(values.size() * kernels::MasterBytes(form));
  kernels::MastersFromFloat(values.data(), static_cast<int64_t>(values.size()), form, master.data(),
                            copy);
}

void StateAccess::Adopt(int32_t index, const std::byte* full) const {
  const layout::FlatSpace& flat = layout_.spaces()[index];
  const SpaceMemory& space = memory_.space(index);
  const int64_t elem_bytes = SizeOf(flat.dtype);
  VisitHeld(layout_, {StateKind::kMaster, index, {0, flat.elems}},
            [&](layout::Range part, int64_t held) {
              std::byte* const copy = space.copy.At(part.begin, held);
              const std::byte* const from = full + part.begin * elem_bytes;
              if (copy != from) std::memcpy(copy, from, part.size() * elem_bytes);
              if (space.master == nullptr) return;
              kernels::MastersFromCopies(copy, part.size(), Form(space), MasterAt(space, held));
            });
}

}  // namespace zerohold::engine
