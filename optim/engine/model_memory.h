// Where the model's parameters and gradients are on this rank, flat space by flat space: a table of
// bases that every stage, form and dtype only fills differently.
//
// Two ways to index a space's arrays: by element of the space (what every rank has in full), or by
// element of what this rank holds of it (its update ranges end to end, layout::HeldBegin). Threads:
// made once; then what the engine's order of operations says about each range.
#pragma once

#include <absl/status/statusor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "optim/engine/arenas.h"
#include "optim/engine/placement.h"
#include "src/layout/layout.h"
#include "src/memory/host_buffer.h"
#include "zerohold/options.h"

namespace zerohold::engine {

// An array with one of the two ways of indexing.
struct Array {
  std::byte* base = nullptr;  // null: there is none
  DType dtype = DType::kFloat32;
  bool held = false;  // indexed by held element; else by element of the space

  std::byte* At(int64_t space_elem, int64_t held_elem) const {
    return base + (held ? held_elem : space_elem) * SizeOf(dtype);
  }
};

struct SpaceMemory {
  // Compute copy: of all, or of what is held where units come in frames; null where it rests on
  // disk.
  Array copy;
  Array gradient;  // what the trainer adds to; null where it comes in frames
  // Reduced gradient: this rank's shards are valid (all, after a gather); null where it rests on
  // disk.
  Array result;
  Array full_sum;  // fp32 sums of this rank's own micro-batches, in full
  // fp32 running sums of reduced micro-batches; more than one level for the pairwise tree over
  // rounds.
  std::vector<float*> sums;  // by held element
};

// What the tables depend on besides the layout.
struct MemoryPlan {
  bool moment1 = true;
  bool moment2 = true;
  MasterForm master = MasterForm::kFloat32;
  // Gradients of units with 16-bit types are summed in fp32 before one reduction.
  bool full_sums = false;
  int sum_levels = 0;          // running sums of reductions; 0 for one reduction a step
  bool sums_in_place = false;  // gradients are their own sums: any number of micro-batches
  FrameSizes frames;
  Placement placement;
};
// `before`: the frames of the core that this one succeeds.
MemoryPlan MakeMemoryPlan(const EngineOptions& options, const layout::Layout& layout,
                          std::span<const UnitSpec> units, const FrameSizes& before);

class ModelMemory {
 public:
  // `layout` and the ledger outlive it. `before` has the generations of units but the last: their
  // arrays are shared, the last one's are made; null when there is but one. To move, `before` has
  // all of them: arrays of shards that change their tier are made anew, and Records fills them.
  // Collective.
  // Errors, the same on all ranks: ResourceExhausted with asked and available.
  static absl::StatusOr<std::unique_ptr<ModelMemory>> Create(comm::Communicator& communicator,
                                                             const layout::Layout& layout,
                                                             const MemoryPlan& plan,
                                                             const ModelMemory* before,
                                                             MemoryBooks books);

  const SpaceMemory& space(int32_t index) const { return spaces_[index]; }
  // See MemoryPlan::full_sums.
  bool HasFullSums(UnitId unit) const { return unit_has_full_sums_[unit]; }
  const Arenas& arenas() const { return arenas_; }

  const ArenaPair& ArenasOf(UnitId unit) const;

  // What the trainer sees; addresses, whether there is memory now or not.
  std::byte* ParameterAddress(int32_t space) const;
  std::byte* GradientAddress(int32_t space) const;  // null for a frozen one

 private:
  ModelMemory(const layout::Layout& layout, const ModelMemory* before);
  using Buffers = std::vector<std::shared_ptr<const memory::HostBuffer>>;

  // The arrays of spaces from `first` on, and of those before it that change their tier.
  absl::Status Allocate(size_t first, const MemoryPlan& plan, memory::Ledger* ledger);
  absl::Status AllocateCopies(size_t first, const MemoryPlan& plan, memory::Ledger* ledger);
  absl::Status AllocateGradients(size_t first, const MemoryPlan& plan, memory::Ledger* ledger);

  // Appends `elems` of `bytes` each for a space to the buffer of a kind, which is allocated in one
  // piece when all have asked.
  class Pieces;

  const layout::Layout& layout_;
  std::vector<SpaceMemory> spaces_;
  std::vector<bool> unit_has_full_sums_;
  Arenas arenas_;
  Buffers copies_;  // of each generation
  Buffers gradients_;
};

}  // namespace zerohold::engine
