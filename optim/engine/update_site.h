// Where records are updated: on the cores this rank was given, a record at a time, in tiles of
// whole pages spread over them. One pass reads gradient, master and moments and writes master and
// moments.
//
// Threads: Prepare when no update runs; Update on one thread at a time, which spreads the tiles.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "optim/engine/model_memory.h"
#include "optim/engine/records.h"
#include "optim/kernels/update.h"
#include "src/device/cpu/worker_pool.h"
#include "src/layout/layout.h"
#include "zerohold/options.h"

namespace zerohold::engine {

class UpdateSite {
 public:
  // `layout`, `memory` and `records` outlive it.
  struct Model {
    const layout::Layout& layout;
    const ModelMemory& memory;
    const Records& records;
  };
  UpdateSite(const Model& model, const EngineOptions& options, int threads);

  // What the next updates use: hyper-parameters, the schedule's factor, what multiplies gradients.
  void Prepare(std::span<const GroupOptions> groups, double learning_rate_factor,
               double gradient_scale);
  // `step`: the count of the record's flat space, this update included. Requires: its arrays are
  // there.
  void Update(int64_t record, int64_t step);

  int threads() const { return pool_.threads(); }
  InstructionSet instruction_set() const { return instruction_set_; }

 private:
  // A run of one group that is contiguous in what this rank holds and in the flat space.
  struct Tile {
    int64_t held_offset;  // in what this rank holds of the space
    int64_t record_offset;
    int64_t space_offset;
    int64_t elems;
    int32_t group;
  };
  struct RecordTiles {
    size_t first;
    size_t count;
  };

  void CutTiles(const layout::Record& record, const layout::RecordPiece& piece);
  void AddTiles(Tile tile, int64_t end);
  void Throttle(int64_t record, int64_t begin_ns);
  static void UpdateTile(void* self, int64_t index);

  const layout::Layout& layout_;
  const ModelMemory& memory_;
  const Records& records_;
  const UpdateRule rule_;
  const MasterForm master_;
  const InstructionSet instruction_set_;
  std::vector<kernels::UpdateFunction> updates_;  // by space; null for a frozen one
  device::WorkerPool pool_;

  std::vector<Tile> tiles_;
  std::vector<RecordTiles> tiles_of_;  // by record

  std::vector<GroupOptions> groups_;
  double learning_rate_factor_ = 1.0;
  double gradient_scale_ = 1.0;
  std::vector<kernels::UpdateConstants> constants_;  // by group, for constants_step_
  int64_t constants_step_ = 0;
  int64_t record_ = 0;  // at hand

  const double update_rate_;          // bytes of states a second; 0: as it comes
  std::vector<int64_t> state_bytes_;  // by record, for the rate
  int64_t free_ns_ = 0;               // when an update of that rate has done what it was given
};

}  // namespace zerohold::engine
