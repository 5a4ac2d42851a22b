// Invariants:
//  1. A message lies in its mailbox until its sender's Exchange ends, and Exchange does not end
//     while somebody copies out of it: a message that was taken may be read without the lock.
//  2. A rank that gives up withdraws what nobody took: it leaves nothing behind that another one
//     could touch.
#include "src/comm/thread_communicator.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "src/comm/point_to_point.h"

namespace zerohold::comm {
namespace {

struct Message {
  uint32_t tag;
  const char* text;
  const void* data;
  int64_t bytes;
};

// What one rank has for another in the exchange at hand, in order.
struct Mailbox {
  std::vector<Message> messages;
  size_t next = 0;  // the first that is not taken
};

struct RankState {
  std::condition_variable changed;   // what this rank waits for may have come
  int64_t unread = 0;                // its messages that are not copied yet
  std::optional<Farewell> farewell;  // it takes part no more
};

// All that ranks share, under one lock; copies run outside it.
struct Hub {
  explicit Hub(int world) : world(world), ranks(world), mailboxes(world * world) {}
  Mailbox& mailbox(int from, int to) { return mailboxes[from * world + to]; }

  const int world;
  std::mutex mutex;
  std::vector<RankState> ranks;
  std::vector<Mailbox> mailboxes;
  std::vector<std::shared_ptr<Hub>> twins;  // of duplicates, in their order
};

class ThreadCommunicator final : public PointToPointCommunicator {
 public:
  ThreadCommunicator(std::shared_ptr<Hub> hub, int rank)
      : PointToPointCommunicator(rank, hub->world), hub_(std::move(hub)) {}
  ~ThreadCommunicator() override { LeaveIfCancelled(); }
  int local_rank() const override { return rank(); }
  int local_size() const override { return size(); }
  bool any_thread() const override { return true; }

 protected:
  absl::Status Exchange(const Call& call, std::span<const Outgoing> outgoing,
                        std::span<const Incoming> incoming) override {
    const auto deadline = Deadline();
    Lock lock(hub_->mutex);
    RankState& own = hub_->ranks[rank()];
    Post(call, outgoing);
    arrived_.assign(incoming.size(), 0);
    missing_.reserve(incoming.size() + size());  // how many are is a matter of time
    size_t arrived_count = 0;
    for (bool expired = false;;) {
      if (const int64_t index = FindArrived(call, incoming); index >= 0) {
        const Incoming& message = incoming[index];
        if (const int64_t bytes = Next(message.peer)->bytes; bytes != message.bytes) {
          return Withdraw(lock, WrongSize(call, message.peer, bytes, message.bytes));
        }
        Take(message, lock);
        arrived_[index] = 1;
        ++arrived_count;
      } else if (arrived_count == incoming.size() && own.unread == 0) {
        return absl::OkStatus();
      } else if (absl::Status status = CheckMissing(call, incoming); !status.ok()) {
        return Withdraw(lock, std::move(status));
      } else if (cancelled()) {
        return Withdraw(lock, Cancelled(call.label));
      } else if (expired) {
        return Withdraw(lock, TimedOut(call.label, FindMissing(incoming)));
      } else {
        expired = own.changed.wait_until(lock, deadline) == std::cv_status::timeout;
      }
    }
  }

  // The first rank to come makes the hub, the others find it; the k-th twin of each has the k-th.
  absl::StatusOr<std::shared_ptr<Communicator>> Twin() override {
    Lock lock(hub_->mutex);
    if (hub_->twins.size() == twins_) hub_->twins.push_back(std::make_shared<Hub>(size()));
    return std::make_shared<ThreadCommunicator>(hub_->twins[twins_++], rank());
  }

  void Leave(const Farewell& farewell) override {
    Lock lock(hub_->mutex);
    hub_->ranks[rank()].farewell = farewell;
    for (RankState& peer : hub_->ranks) peer.changed.notify_all();
  }

  void Interrupt() override {
    Lock lock(hub_->mutex);
    hub_->ranks[rank()].changed.notify_all();
  }

 private:
  using Lock = std::unique_lock<std::mutex>;

  void Post(const Call& call, std::span<const Outgoing> outgoing) {
    for (int peer = 0; peer < size(); ++peer) {
      hub_->mailbox(rank(), peer).messages.clear();
      hub_->mailbox(rank(), peer).next = 0;
    }
    for (const Outgoing& message : outgoing) {
      hub_->mailbox(rank(), message.peer)
          .messages.push_back({call.tag, call.text, message.data, message.bytes});
      hub_->ranks[message.peer].changed.notify_all();
    }
    hub_->ranks[rank()].unread = std::ssize(outgoing);
  }

  // What a peer has for us next; null for nothing.
  const Message* Next(int peer) const {
    const Mailbox& box = hub_->mailbox(peer, rank());
    return box.next < box.messages.size() ? &box.messages[box.next] : nullptr;
  }

  // The first message that we wait for and that is there; -1 for none. Always searched from the
  // front, so that two messages of one peer are never exchanged.
  int64_t FindArrived(const Call& call, std::span<const Incoming> incoming) const {
    for (size_t i = 0; i < incoming.size(); ++i) {
      if (arrived_[i]) continue;
      const Message* message = Next(incoming[i].peer);
      if (message != nullptr && message->tag == call.tag) return i;
    }
    return -1;
  }

  // Copies the next message of its peer. Drops the lock meanwhile.
  void Take(const Incoming& into, Lock& lock) {
    Mailbox& box = hub_->mailbox(into.peer, rank());
    const void* data = box.messages[box.next++].data;
    if (into.bytes > 0) {
      lock.unlock();
      std::memcpy(into.data, data, into.bytes);
      lock.lock();
    }
    RankState& sender = hub_->ranks[into.peer];
    --sender.unread;
    sender.changed.notify_all();
  }

  // Fails when a rank that has not come never will: it has left, or is in another operation.
  absl::Status CheckMissing(const Call& call, std::span<const Incoming> incoming) {
    for (const int peer : FindMissing(incoming)) {
      const std::optional<Farewell>& farewell = hub_->ranks[peer].farewell;
      if (farewell) return PeerLeft(call.label, *farewell);
      const Message* message = Next(peer);
      if (message != nullptr && message->tag != call.tag) {
        return OtherOperation(call, peer, message->text);
      }
    }
    return absl::OkStatus();
  }

  // Ranks whose messages have not come, or that have not taken ours.
  const std::vector<int>& FindMissing(std::span<const Incoming> incoming) {
    missing_.clear();
    for (size_t i = 0; i < incoming.size(); ++i) {
      if (!arrived_[i]) missing_.push_back(incoming[i].peer);
    }
    for (int peer = 0; peer < size(); ++peer) {
      const Mailbox& box = hub_->mailbox(rank(), peer);
      if (box.next < box.messages.size()) missing_.push_back(peer);
    }
    return missing_;
  }

  absl::Status Withdraw(Lock& lock, absl::Status reason) {
    RankState& own = hub_->ranks[rank()];
    for (int peer = 0; peer < size(); ++peer) {
      Mailbox& box = hub_->mailbox(rank(), peer);
      own.unread -= box.messages.size() - box.next;
      box.messages.resize(box.next);
    }
    // What is left is being copied right now.
    own.changed.wait(lock, [&own] { return own.unread == 0; });
    return reason;
  }

  const std::shared_ptr<Hub> hub_;
  size_t twins_ = 0;  // of this rank
  // Kept for their capacity.
  std::vector<char> arrived_;  // of each incoming message
  std::vector<int> missing_;
};

}  // namespace

std::vector<std::shared_ptr<Communicator>> CreateThreadCommunicators(int world) {
  auto hub = std::make_shared<Hub>(world);
  std::vector<std::shared_ptr<Communicator>> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.push_back(std::make_shared<ThreadCommunicator>(hub, rank));
  }
  return ranks;
}

}  // namespace zerohold::comm
