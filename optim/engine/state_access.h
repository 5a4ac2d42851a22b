// Reads and writes any element range of any state, wherever and in whatever form its owners hold
// it. Of records on disk that may fail, as Records::Visit says.
//
// Threads: one at a time, between steps.
#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <span>
#include <vector>

#include "optim/engine/model_memory.h"
#include "optim/engine/records.h"
#include "optim/kernels/masters.h"
#include "src/comm/communicator.h"
#include "src/layout/layout.h"
#include "zerohold/engine.h"

namespace zerohold::engine {

// Elements of one flat space.
struct StateRange {
  StateKind state;
  int32_t space;
  layout::Range range;
};

class StateAccess {
 public:
  // All outlive it.
  StateAccess(const layout::Layout& layout, const ModelMemory& memory, Records& records,
              MasterForm master, const Placement& placement);

  // Fills `out` on every rank. Collective.
  absl::Status Read(comm::Communicator& communicator, const StateRange& what,
                    std::span<float> out) const;
  // Takes this rank's part of `values`, which are the same on every rank. Of a master, all go into
  // `full_copy` too, rounded: the space's whole copy where it is now, or null.
  absl::Status Write(const StateRange& what, std::span<const float> values,
                     std::byte* full_copy) const;
  // The masters, and what is held of the copies, become what `full`, the whole space in its dtype,
  // says. It may be the copy itself.
  absl::Status Adopt(int32_t space, const std::byte* full) const;
  // Whether all of the reduced gradient that this rank holds there is finite.
  absl::StatusOr<bool> GradientFinite(int32_t space, layout::Range range) const;

 private:
  // A part of a record, or of what is held of a space without one, where its bytes are.
  struct Part {
    layout::Range range;  // of the space
    int64_t held;         // its first element among what this rank holds of it
    int64_t offset;       // in the record
  };
  void ReadPart(const StateRange& what, const Part& part, const RecordArrays& arrays,
                float* out) const;
  void WritePart(const StateRange& what, const Part& part, const RecordArrays& arrays,
                 const float* values) const;
  // Calls visit(part, arrays) for all of `what` that this rank holds.
  template <typename Visit>
  absl::Status VisitParts(const StateRange& what, bool write, Visit visit) const;
  bool InRecords(const StateRange& what) const;
  std::byte* CopyAt(int32_t space, const Part& part, const RecordArrays& arrays) const;
  const std::byte* GradientAt(int32_t space, const Part& part, const RecordArrays& arrays) const;
  static void SetCopy(std::span<const float> values, kernels::WeightForm form, std::byte* copy);
  kernels::WeightForm Form(int32_t space) const;

  const layout::Layout& layout_;
  const ModelMemory& memory_;
  Records& records_;
  const MasterForm master_;
  const Placement& placement_;
};

}  // namespace zerohold::engine
