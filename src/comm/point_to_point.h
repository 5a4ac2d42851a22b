// The four verbs over one primitive. A transport brings only Exchange: bytes between pairs of
// ranks, with a deadline; who sends what to whom, the order of sums, the check of order and the
// texts of errors are written here once.
//
// Does not know: threads, MPI, what a bucket is.
// Threads: one at a time, as Communicator says.
//
// Invariants:
//  1. In AllReduce and ReduceScatter every rank sends to every other one, so that a rank that has
//     not come is known by its number; empty shards send empty messages.
//  2. A failed exchange breaks the communicator for good: its status is every later verb's answer.
//     The peers are told, so that none of them waits for this rank or reads what it had for them.
//     They hear of the failure that came first in this communicator and its duplicates: a rank that
//     gives up one because a peer left the other passes that peer on, not itself.
//  3. Once each verb has run with its largest operands, verbs allocate nothing.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "src/comm/communicator.h"
#include "src/comm/label.h"
#include "src/comm/tree_sum.h"

namespace zerohold::comm {

// Why a rank takes part no more, for the others: where that began, and what was said there.
struct Farewell {
  int origin;
  absl::StatusCode code;
  std::string text;
};

class PointToPointCommunicator : public Communicator {
 public:
  int rank() const final { return rank_; }
  int size() const final { return size_; }
  absl::StatusOr<std::shared_ptr<Communicator>> Duplicate() final;
  void Cancel(const absl::Status& why) final;

  absl::Status AllGather(const Label& label, void* buffer, std::span<const Piece> pieces) final;
  absl::Status ReduceScatter(const Label& label, const ReduceScatterOperands& operands) final;
  void FinishSum(const RunningSums& sums, int64_t rounds, int64_t elems, const Mean& mean) final;
  absl::Status Broadcast(const Label& label, void* buffer, int64_t bytes, int root) final;
  absl::Status AllReduce(const Label& label, std::span<int64_t> bits, std::span<int64_t> maxima,
                         std::span<int64_t> sums) final;

 protected:
  struct Outgoing {
    int peer;
    const void* data;
    int64_t bytes;
  };
  struct Incoming {
    int peer;
    void* data;
    int64_t bytes;
  };
  // Which verb an exchange belongs to. Ranks whose tags differ are in different ones, even when all
  // sizes fit.
  struct Call {
    const Label& label;
    const char* text;  // the label in kLabelBytes, for the messages of others
    uint32_t tag;
  };

  PointToPointCommunicator(int rank, int size);

  // Moves all messages and returns when none of the buffers is in use any more, which it may not be
  // before the other side has come. Between two ranks, messages match in the order of the lists.
  // Operations and sizes of both sides are compared; zero is a size like any other.
  // Errors: those below, or the transport's own, as Aborted; then Leave is called.
  virtual absl::Status Exchange(const Call& call, std::span<const Outgoing> outgoing,
                                std::span<const Incoming> incoming) = 0;

  // What Duplicate gives, before it is configured. All ranks are there.
  virtual absl::StatusOr<std::shared_ptr<Communicator>> Twin() = 0;

  // Tells all peers that this rank takes part no more, and lets go of what the last Exchange left.
  virtual void Leave(const Farewell&) {}
  // For the destructors of transports: a cancelled communicator without a verb has told nobody yet.
  void LeaveIfCancelled();

  // Any thread: makes an Exchange that waits look at cancelled(). Transports that poll need it not.
  virtual void Interrupt() {}
  bool broken() const { return !broken_.ok(); }
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  // When an exchange that starts now gives up.
  std::chrono::steady_clock::time_point Deadline() const;

  // What Exchange answers when ranks have not come (any order, repeats allowed), when it was
  // cancelled, when it needs a rank that has left, that is in another operation, or that has other
  // sizes.
  absl::Status TimedOut(const Label& label, std::vector<int> missing) const;
  absl::Status Cancelled(const Label& label) const;
  absl::Status PeerLeft(const Label& label, const Farewell& farewell);
  absl::Status OtherOperation(const Call& call, int peer, const char* peers_text) const;
  absl::Status WrongSize(const Call& call, int peer, int64_t peers_bytes, int64_t own_bytes) const;

 private:
  // What ranks must agree on besides the label.
  struct Shape {
    int64_t messages = 0;  // tells apart who sends how many messages to whom
    int64_t bytes = 0;     // of the operands as a whole
    uint64_t hash = 0;     // of all the rest; only taken when the order is checked
  };
  // What a communicator and its duplicates have in common.
  struct FirstCause {
    std::mutex mutex;
    std::optional<Farewell> farewell;
  };
  struct OrderRecord {
    int64_t bytes;
    uint64_t hash;
    char text[kLabelBytes];
  };

  // Starts a verb: the sticky status, the check of order. After it the message lists are empty.
  absl::Status Begin(const Label& label, const Shape& shape);
  absl::Status CheckOrder(const Label& label, const Shape& shape);
  // Exchanges the message lists, and keeps what fails.
  absl::Status Run(const Label& label);
  absl::Status Break(absl::Status status);
  // Notes a cause, unless there is one already; gives the first.
  Farewell NoteCause(Farewell farewell);
  // The k-th peer after and before this rank, k from 1: spreads the load over ranks.
  int After(int k) const { return (rank_ + k) % size_; }
  int Before(int k) const { return (rank_ + size_ - k) % size_; }
  void CountSent(Traffic traffic);

  const int rank_;
  const int size_;
  TreeSum tree_sum_;
  std::atomic<bool> cancelled_ = false;
  absl::Status broken_;
  std::shared_ptr<FirstCause> cause_ = std::make_shared<FirstCause>();
  int64_t sequence_ = 0;
  uint32_t tag_ = 0;
  char text_[kLabelBytes];

  // Kept for their capacity.
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::vector<const void*> addends_;
  std::vector<int64_t> words_;
  std::vector<OrderRecord> records_;
};

}  // namespace zerohold::comm
