// Fills the table of bases: one buffer for each kind of array, cut space by space.
#include "optim/engine/model_memory.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <span>

#include "optim/engine/window.h"
#include "optim/kernels/masters.h"
#include "optim/kernels/update.h"
#include "src/base/align.h"
#include "src/base/status_macros.h"

namespace zerohold::engine {

// Where a space's array will lie in the buffer of its kind.
class ModelMemory::Pieces {
 public:
  template <typename T>
  void Add(int64_t bytes, T** base) {
    pieces_.push_back({bytes_, [base](std::byte* at) { *base = reinterpret_cast<T*>(at); }});
    bytes_ += base::AlignUp(bytes, 64);
  }
  absl::Status Allocate(MemoryKind kind, memory::Ledger* ledger, Buffers& buffers) {
    ZH_ASSIGN_OR_RETURN(memory::HostBuffer buffer,
                        memory::HostBuffer::Allocate(bytes_, kind, ledger));
    for (const Piece& piece : pieces_)
      piece.set(static_cast<std::byte*>(buffer.data()) + piece.offset);
    buffers.push_back(std::make_shared<const memory::HostBuffer>(std::move(buffer)));
    return absl::OkStatus();
  }

 private:
  struct Piece {
    int64_t offset;
    std::function<void(std::byte*)> set;
  };
  std::vector<Piece> pieces_;
  int64_t bytes_ = 0;
};

MemoryPlan MakeMemoryPlan(const EngineOptions& options, const layout::Layout& layout,
                          std::span<const UnitSpec> units, const FrameSizes& before) {
  MemoryPlan plan;
  const kernels::RuleFacts& rule = *kernels::FactsOf(options.rule);
  plan.moment1 = rule.moment1;
  plan.moment2 = rule.moment2;
  plan.master = options.master;
  const bool accumulates = options.max_micro_batches > 1;
  const bool weighted = options.reduction == GradientReduction::kWeightedMean;
  if (options.reproducible && accumulates) {
    plan.sum_levels = std::bit_width(static_cast<uint64_t>(options.max_micro_batches));
  } else if ((accumulates && layout.config().gradient_frames) || weighted) {
    plan.sum_levels = 1;
  }
  const bool all_fp32 = std::ranges::all_of(layout.spaces(), [](const layout::FlatSpace& space) {
    return space.dtype == DType::kFloat32;
  });
  const bool plain = plan.sum_levels == 0 && !layout.config().gradient_frames;
  plan.sums_in_place = plain && all_fp32;
  plan.full_sums = accumulates && plain && !all_fp32;
  plan.frames = SizeFrames(options, layout, units, before);
  plan.placement = Place(options, layout, plan.sum_levels == 0);
  plan.frames.staging = plan.placement.staging_bytes();
  return plan;
}

absl::StatusOr<std::unique_ptr<ModelMemory>> ModelMemory::Create(comm::Communicator& communicator,
                                                                 const layout::Layout& layout,
                                                                 const MemoryPlan& plan,
                                                                 const ModelMemory* before,
                                                                 MemoryBooks books) {
  std::unique_ptr<ModelMemory> memory(new ModelMemory(layout, before));
  ZH_ASSIGN_OR_RETURN(memory->arenas_,
                      CreateArenas(communicator, layout, plan.frames, memory->arenas_, books));
  const size_t first = before == nullptr ? 0 : before->spaces_.size();
  ZH_RETURN_IF_ERROR(comm::Agree(communicator, memory->Allocate(first, plan, books.ledger)));
  return memory;
}

ModelMemory::ModelMemory(const layout::Layout& layout, const ModelMemory* before)
    : layout_(layout) {
  if (before != nullptr) {
    spaces_ = before->spaces_;
    unit_has_full_sums_ = before->unit_has_full_sums_;
    arenas_ = before->arenas_;
    copies_ = before->copies_;
    gradients_ = before->gradients_;
  }
  spaces_.resize(layout.spaces().size());
  unit_has_full_sums_.resize(layout.units().size(), false);
}

absl::Status ModelMemory::Allocate(size_t first, const MemoryPlan& plan, memory::Ledger* ledger) {
  for (const layout::FlatSpace& space : layout_.spaces().subspan(first)) {
    if (plan.full_sums && space.dtype != DType::kFloat32) unit_has_full_sums_[space.unit] = true;
  }
  // One buffer has all of a kind, so all are made anew where one changes its tier.
  const auto from = [&](const std::vector<bool>& on_disk, Array SpaceMemory::*array) {
    for (size_t i = 0; i < first; ++i) {
      const Array& shards = spaces_[i].*array;
      const bool was_on_disk = shards.held && shards.base == nullptr;
      if (layout_.spaces()[i].held_elems > 0 && on_disk[i] != was_on_disk) return size_t{0};
    }
    return first;
  };
  ZH_RETURN_IF_ERROR(AllocateCopies(from(plan.placement.copies, &SpaceMemory::copy), plan, ledger));
  return AllocateGradients(from(plan.placement.gradients, &SpaceMemory::result), plan, ledger);
}

absl::Status ModelMemory::AllocateCopies(size_t first, const MemoryPlan& plan,
                                         memory::Ledger* ledger) {
  if (first == 0) copies_.clear();
  Pieces pieces;
  for (size_t i = first; i < spaces_.size(); ++i) {
    const layout::FlatSpace& space = layout_.spaces()[i];
    Array& copy = spaces_[i].copy;
    copy = {.dtype = space.dtype, .held = layout_.units()[space.unit].parameters_framed};
    if (!copy.held) {
      copy.base = ParameterAddress(static_cast<int32_t>(i));
    } else if (!plan.placement.copies[i]) {
      pieces.Add(space.held_elems * SizeOf(space.dtype), &copy.base);
    }
  }
  return pieces.Allocate(MemoryKind::kParameters, ledger, copies_);
}

absl::Status ModelMemory::AllocateGradients(size_t first, const MemoryPlan& plan,
                                            memory::Ledger* ledger) {
  if (first == 0) gradients_.clear();
  Pieces pieces;
  for (size_t i = first; i < spaces_.size(); ++i) {
    const layout::FlatSpace& space = layout_.spaces()[i];
    const bool framed = layout_.units()[space.unit].gradients_framed;
    SpaceMemory& memory = spaces_[i];
    memory.result = {};
    if (space.frozen) continue;
    memory.gradient.dtype = memory.result.dtype = space.dtype;
    if (!framed) memory.gradient.base = GradientAddress(static_cast<int32_t>(i));
    memory.sums.resize(plan.sum_levels);
    for (float*& sum : memory.sums) pieces.Add(space.held_elems * SizeOf(DType::kFloat32), &sum);
    if (HasFullSums(space.unit))
      pieces.Add(space.elems * SizeOf(DType::kFloat32), &memory.full_sum.base);
    memory.result.held = framed && plan.sum_levels == 0;
    if (memory.result.held && !plan.placement.gradients[i]) {
      pieces.Add(space.held_elems * SizeOf(space.dtype), &memory.result.base);
    }
  }
  ZH_RETURN_IF_ERROR(pieces.Allocate(MemoryKind::kGradients, ledger, gradients_));
  // Where the reduced gradient is not an array of its own, it is the sum's, or the gradient's.
  for (SpaceMemory& memory : std::span(spaces_).subspan(first)) {
    if (!memory.sums.empty()) {
      memory.result = {reinterpret_cast<std::byte*>(memory.sums[0]), DType::kFloat32, true};
    } else if (memory.full_sum.base != nullptr) {
      memory.result = memory.full_sum;
    } else if (!memory.result.held) {
      memory.result = memory.gradient;
    }
  }
  return absl::OkStatus();
}

const ArenaPair& ModelMemory::ArenasOf(UnitId unit) const {
  return *arenas_.generations[layout_.units()[unit].generation];
}

std::byte* ModelMemory::ParameterAddress(int32_t index) const {
  const layout::FlatSpace& space = layout_.spaces()[index];
  return reinterpret_cast<std::byte*>(ArenasOf(space.unit).parameters.base()) +
         space.parameter_offset_bytes;
}

std::byte* ModelMemory::GradientAddress(int32_t index) const {
  const layout::FlatSpace& space = layout_.spaces()[index];
  if (space.gradient_offset_bytes < 0) return nullptr;
  return reinterpret_cast<std::byte*>(ArenasOf(space.unit).gradients.base()) +
         space.gradient_offset_bytes;
}

}  // namespace zerohold::engine
