// Carries collectives, in the order given, among the ranks of one group. It carries; sums are made
// by our own loop, in the order of layout::SumOrder, never by a message library.
//
// Threads: one at a time; every verb blocks. All verbs are collective: all ranks call them in the
// same order with the same label, sizes and pieces. Every verb may end with
//   DeadlineExceeded  naming the operation and the ranks that have not come within the timeout,
//   Aborted           naming the operation, and the rank whose operation was another one (checked
//                     order),
//   what another rank ended with, naming that rank (Aborted when it was cancelled).
// After any of them the communicator is broken: every later verb gives the same status at once, and
// ranks that wait for this one hear why it does not come.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "src/comm/sums.h"
#include "src/layout/layout.h"
#include "src/telemetry/counters.h"
#include "zerohold/stats.h"
#include "zerohold/tensor.h"

namespace zerohold::comm {

// Names an operation in messages and in the check of order: "ReduceScatter of bucket 3 of block.0".
// Strings outlive the verb.
struct Label {
  const char* verb;
  const char* item = "";     // "bucket", "parameter"; "" for none
  int64_t index = -1;        // of the item; -1 for none
  std::string_view of = {};  // unit or parameter name; empty for none
};
std::string ToString(const Label& label);

// A contiguous part of a buffer that every rank has; `rank` holds its contents before the verb.
struct Piece {
  int rank;
  int64_t offset_bytes;
  int64_t bytes;
};

struct ReduceScatterOperands {
  const void* addends = nullptr;  // this rank's, of the whole bucket; null counts as zero
  DType dtype = DType::kFloat32;  // of addends, on every rank
  // Of each rank, in elements from `addends`; world of them.
  std::span<const layout::Range> shards = {};
  std::span<const float> weights = {};  // of each rank, multiply its addends in fp32; empty: none
  // The sum over ranks (fp32, in tree order) of the own shard goes to the running sums, if there
  // are any, else its mean is written: mean.out may be the own shard's place in `addends`.
  RunningSums sums = {};
  Mean mean = {};
};

struct CommunicatorSettings {
  double timeout_s = 600.0;
  bool check_order = false;
  // Longest single message; larger transfers are cut. Tests lower it.
  int64_t max_message_bytes = int64_t{1} << 30;
  // Counts bytes sent to other ranks by ReduceScatter and AllGather; null for none.
  telemetry::Counters<Traffic>* sent_bytes = nullptr;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Ranks that share this node's memory, from the transport itself, not from the environment.
  virtual int local_rank() const = 0;
  virtual int local_size() const = 0;
  // False when verbs may only be called on threads that the caller of the library controls.
  virtual bool any_thread() const = 0;

  void Configure(const CommunicatorSettings& settings) { settings_ = settings; }
  const CommunicatorSettings& settings() const { return settings_; }

  // An engine takes it for itself, until it lets go: false while another has it. Any thread.
  bool TryHold() { return !held_.exchange(true); }
  void LetGo() { held_ = false; }

  // A communicator over the same ranks whose operations never meet this one's: the two may run at
  // the same time on two threads. Settings are copied, scratch is not. Collective, a verb.
  virtual absl::StatusOr<std::shared_ptr<Communicator>> Duplicate() = 0;

  // Any thread, not blocking: the verb at hand and all later ones end with Cancelled within
  // milliseconds, without waiting for a peer (an owner that goes away on an error must not hang).
  // `why` is what peers hear, unless a peer's own failure broke this communicator, or one that is
  // duplicated from the same, before; OK for an owner that just goes.
  virtual void Cancel(const absl::Status& why) = 0;

  // Memory that ReduceScatter works in, zeroed; it outlives its use. See ScratchBytes.
  void SetScratch(std::span<std::byte> scratch) { scratch_ = scratch; }
  // Enough for buckets whose longest shard has `max_shard_elems`.
  static int64_t ScratchBytes(int64_t max_shard_elems, DType dtype, int world);

  // In place: after it, every rank has every piece. Pieces do not overlap; a rank may own several
  // or none.
  virtual absl::Status AllGather(const Label& label, void* buffer,
                                 std::span<const Piece> pieces) = 0;
  // Requires: SetScratch with enough.
  virtual absl::Status ReduceScatter(const Label& label, const ReduceScatterOperands& operands) = 0;
  // The mean of a shard's running sums after `rounds` of them. Exchanges nothing, cannot fail.
  virtual void FinishSum(const RunningSums& sums, int64_t rounds, int64_t elems,
                         const Mean& mean) = 0;
  virtual absl::Status Broadcast(const Label& label, void* buffer, int64_t bytes, int root) = 0;
  // In place, element by element over ranks: bits are or-ed, maxima maximised, sums added (all
  // exact and free of order). One exchange for all three.
  virtual absl::Status AllReduce(const Label& label, std::span<int64_t> bits,
                                 std::span<int64_t> maxima, std::span<int64_t> sums) = 0;

 protected:
  CommunicatorSettings settings_;
  std::span<std::byte> scratch_;

 private:
  std::atomic<bool> held_ = false;
};

// One verdict out of all ranks': OK when all bring OK, else, on every rank, the status of the
// lowest rank that failed, with "rank R: " before its text. Collective.
absl::Status Agree(Communicator& communicator, const absl::Status& mine);

// Every rank's `mine`, by rank; of bytes alone. Collective.
template <typename T>
absl::StatusOr<std::vector<T>> GatherAll(Communicator& communicator, const char* what,
                                         const T& mine) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(communicator.size());
  all[communicator.rank()] = mine;
  std::vector<Piece> pieces;
  for (int rank = 0; rank < communicator.size(); ++rank) {
    pieces.push_back({rank, static_cast<int64_t>(rank * sizeof(T)), sizeof(T)});
  }
  const absl::Status status = communicator.AllGather({what}, all.data(), pieces);
  if (!status.ok()) return status;
  return all;
}

// OK when every rank brings the same text. Else FailedPrecondition, the same on all ranks: the
// lowest rank that differs from rank 0, `what`, and the first line that differs as rank 0 and as
// that rank have it. Collective.
absl::Status AgreeOnText(Communicator& communicator, std::string_view what, std::string_view text);

}  // namespace zerohold::comm
