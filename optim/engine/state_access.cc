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

StateAccess::StateAccess(const layout::Layout& layout, const ModelMemory& memory, Records& records,
                         MasterForm master, const Placement& placement)
    : layout_(layout), memory_(memory), records_(records), master_(master), placement_(placement) {}

kernels::WeightForm StateAccess::Form(int32_t index) const {
  const layout::FlatSpace& space = layout_.spaces()[index];
  return {space.dtype, space.frozen ? MasterForm::kFloat32 : master_};
}

// The rest is in the space's own arrays: a parameter that is frozen, or in fp32, is what its copy
// says.
bool StateAccess::InRecords(const StateRange& what) const {
  if (what.state == StateKind::kGradient) return placement_.gradients[what.space];
  if (layout_.spaces()[what.space].frozen) return false;
  return what.state != StateKind::kMaster || placement_.copies[what.space] ||
         kernels::MasterBytes(Form(what.space)) > 0;
}

std::byte* StateAccess::CopyAt(int32_t space, const Part& part, const RecordArrays& arrays) const {
  const Array& copy = memory_.space(space).copy;
  return arrays.copy == nullptr ? copy.At(part.range.begin, part.held)
                                : arrays.copy + part.offset * SizeOf(copy.dtype);
}

template <typename Visit>
absl::Status StateAccess::VisitParts(const StateRange& what, bool write, Visit visit) const {
  if (!InRecords(what)) {
    VisitHeld(layout_, what, [&](layout::Range part, int64_t held) {
      visit(Part{part, held, 0}, RecordArrays());
    });
    return absl::OkStatus();
  }
  const auto visit_record =
      what.state == StateKind::kGradient ? &Records::VisitGradient : &Records::Visit;
  const auto all = layout_.records();
  const auto [first, last] = std::ranges::equal_range(all, what.space, {}, &layout::Record::space);
  for (auto record = first; record != last; ++record) {
    const auto touches = [&](const layout::RecordPiece& piece) {
      return Intersect(piece.range, what.range).size() > 0;
    };
    if (std::ranges::none_of(record->pieces, touches)) continue;
    const auto visit_pieces = [&](const RecordArrays& arrays) {
      for (const layout::RecordPiece& piece : record->pieces) {
        const layout::Range part = Intersect(piece.range, what.range);
        const int64_t offset = piece.offset + part.begin - piece.range.begin;
        if (part.size() > 0) visit(Part{part, record->held_begin + offset, offset}, arrays);
      }
    };
    ZH_RETURN_IF_ERROR((records_.*visit_record)(record - all.begin(), write, visit_pieces));
  }
  return absl::OkStatus();
}

const std::byte* StateAccess::GradientAt(int32_t space, const Part& part,
                                         const RecordArrays& arrays) const {
  const Array& result = memory_.space(space).result;
  return arrays.gradient == nullptr ? result.At(part.range.begin, part.held)
                                    : arrays.gradient + part.offset * SizeOf(result.dtype);
}

void StateAccess::ReadPart(const StateRange& what, const Part& part, const RecordArrays& arrays,
                           float* out) const {
  const SpaceMemory& space = memory_.space(what.space);
  const int64_t elems = part.range.size();
  const std::byte* const copy = CopyAt(what.space, part, arrays);
  const kernels::WeightForm form = Form(what.space);
  switch (what.state) {
    case StateKind::kMaster:
      if (arrays.master == nullptr) return Widen(copy, space.copy.dtype, elems, out);
      return kernels::MastersToFloat(arrays.master + part.offset * kernels::MasterBytes(form), copy,
                                     form, elems, out);
    case StateKind::kMoment1:
      std::copy_n(arrays.moment1 + part.offset, elems, out);
      return;
    case StateKind::kMoment2:
      std::copy_n(arrays.moment2 + part.offset, elems, out);
      return;
    case StateKind::kGradient:
      return Widen(GradientAt(what.space, part, arrays), space.result.dtype, elems, out);
  }
}

absl::Status StateAccess::Read(comm::Communicator& communicator, const StateRange& what,
                               std::span<float> out) const {
  const absl::Status mine =
      VisitParts(what, false, [&](const Part& part, const RecordArrays& arrays) {
        ReadPart(what, part, arrays, out.data() + part.range.begin - what.range.begin);
      });
  ZH_RETURN_IF_ERROR(comm::Agree(communicator, mine));
  if (!layout_.config().shard_update) return absl::OkStatus();
  return communicator.AllGather({"Read"}, out.data(), Owners(layout_, what));
}

absl::StatusOr<bool> StateAccess::GradientFinite(int32_t index, layout::Range range) const {
  bool finite = true;
  std::vector<float> values;
  const StateRange what = {StateKind::kGradient, index, range};
  ZH_RETURN_IF_ERROR(VisitParts(what, false, [&](const Part& part, const RecordArrays& arrays) {
    values.resize(part.range.size());
    ReadPart(what, part, arrays, values.data());
    finite &= std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
  }));
  return finite;
}

absl::Status StateAccess::Write(const StateRange& what, std::span<const float> values,
                                std::byte* full_copy) const {
  if (what.state == StateKind::kMaster && full_copy != nullptr) {
    const DType dtype = memory_.space(what.space).copy.dtype;
    SetCopy(values, Form(what.space), full_copy + what.range.begin * SizeOf(dtype));
  }
  return VisitParts(what, true, [&](const Part& part, const RecordArrays& arrays) {
    WritePart(what, part, arrays, values.data() + part.range.begin - what.range.begin);
  });
}

void StateAccess::WritePart(const StateRange& what, const Part& part, const RecordArrays& arrays,
                            const float* values) const {
  const int64_t elems = part.range.size();
  std::byte* const copy = CopyAt(what.space, part, arrays);
  const kernels::WeightForm form = Form(what.space);
  switch (what.state) {
    case StateKind::kMaster:
      if (arrays.master == nullptr)
        return SetCopy({values, static_cast<size_t>(elems)}, form, copy);
      kernels::MastersFromFloat(values, elems, form,
                                arrays.master + part.offset * kernels::MasterBytes(form), copy);
      return;
    case StateKind::kMoment1:
      std::copy_n(values, elems, arrays.moment1 + part.offset);
      return;
    case StateKind::kMoment2:
      std::copy_n(values, elems, arrays.moment2 + part.offset);
      return;
    case StateKind::kGradient:
      return;
  }
}

// Rounds as an update does, without keeping what is lost.
void StateAccess::SetCopy(std::span<const float> values, kernels::WeightForm form,
                          std::byte* copy) {
  std::vector<std::byte> master(values.size() * kernels::MasterBytes(form));
  kernels::MastersFromFloat(values.data(), static_cast<int64_t>(values.size()), form, master.data(),
                            copy);
}

absl::Status StateAccess::Adopt(int32_t index, const std::byte* full) const {
  const layout::FlatSpace& flat = layout_.spaces()[index];
  const StateRange what = {StateKind::kMaster, index, {0, flat.elems}};
  const int64_t elem_bytes = SizeOf(flat.dtype);
  const kernels::WeightForm form = Form(index);
  return VisitParts(what, true, [&](const Part& part, const RecordArrays& arrays) {
    std::byte* const to = CopyAt(index, part, arrays);
    const std::byte* const from = full + part.range.begin * elem_bytes;
    if (to != from) std::memcpy(to, from, part.range.size() * elem_bytes);
    if (arrays.master == nullptr) return;
    kernels::MastersFromCopies(to, part.range.size(), form,
                               arrays.master + part.offset * kernels::MasterBytes(form));
  });
}

}  // namespace zerohold::engine
