// One exchange: every rank greets each rank that it has something to do with, by a short message
// that says which operation it is in and how long the data are, and carries them when they are
// short. Longer data follow, in parts, once the other one's greeting has come.
//
// Invariants:
//  1. No receive is posted before both sides are known to mean the same operation and length: Open
//     MPI 4.1 writes a long message (over shared memory, from 4 KiB on) beyond the end of a shorter
//     buffer before it reports the truncation.
//  2. Long data are only sent to a rank that is in the same exchange: a send cannot be taken back,
//     and a rank that took it late would read memory that may be gone by then (over shared memory
//     Open MPI 4.1 then loops for ever). A rank that leaves says so to all, and stays for a moment
//     for those who are reading.
//  3. MPI's errors come back as codes; nothing here aborts.
#include "src/comm/mpi_transport.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/base/status_macros.h"
#include "src/comm/backoff.h"
#include "src/comm/mpi_messages.h"
#include "src/comm/point_to_point.h"

namespace zerohold::comm {
namespace {

using Clock = std::chrono::steady_clock;

// What MPI may still read after its communicator has gone.
struct Unsent {
  std::unique_ptr<FarewellMessage> farewell;
  std::unique_ptr<Greeting[]> greetings;
};

// MPI_Finalize deletes what is attached to MPI_COMM_SELF.
void KeepUntilMpiEnds(Unsent unsent) {
  int key = MPI_KEYVAL_INVALID;
  const auto free = [](MPI_Comm, int, void* kept, void*) -> int {
    delete static_cast<Unsent*>(kept);
    return MPI_SUCCESS;
  };
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, free, &key, nullptr);
  MPI_Comm_set_attr(MPI_COMM_SELF, key, new Unsent(std::move(unsent)));
  MPI_Comm_free_keyval(&key);  // once nothing is attached by it
}

class MpiCommunicator final : public PointToPointCommunicator {
 public:
  struct Group {
    int rank, size, local_rank, local_size;
    bool any_thread;
  };
  MpiCommunicator(MPI_Comm owned, const Group& group);
  ~MpiCommunicator() override;
  int local_rank() const override { return group_.local_rank; }
  int local_size() const override { return group_.local_size; }
  bool any_thread() const override { return group_.any_thread; }

 protected:
  absl::Status Exchange(const Call& call, std::span<const Outgoing> outgoing,
                        std::span<const Incoming> incoming) override;
  absl::StatusOr<std::shared_ptr<Communicator>> Twin() override {
    return CreateMpiCommunicator(comm_);
  }
  void Leave(const Farewell& farewell) override;

 private:
  static constexpr int kFarewellTag = 0;
  static constexpr int kGreetingTag = 1;
  static constexpr int kDataTag = 2;

  struct Operation {
    const Call& call;
    std::span<const Outgoing> outgoing;
    std::span<const Incoming> incoming;
  };
  // What a request moves: data of the operands, or a message of our own.
  enum class Kind : uint8_t { kIncoming, kOutgoing, kOwn };
  struct Transfer {
    int peer;
    Kind kind;
  };

  absl::Status Greet(const Operation& operation);
  // The greeting for a peer, made when the operation first mentions it.
  Greeting& GreetingFor(const Call& call, int peer);
  absl::Status TakeGreetings(const Operation& operation);
  absl::Status TakeGreeting(const Operation& operation, int peer, bool* arrived);
  absl::Status ReceiveData(const Operation& operation, int peer);
  absl::Status SendData(const Operation& operation, int peer);
  // Cuts data into parts; start(offset, bytes, request) starts one.
  template <typename Start>
  absl::Status StartParts(const Call& call, Transfer transfer, int64_t bytes, const Start& start);
  void Track(Transfer transfer, MPI_Request request);

  // Looks which requests have ended; they are the first in indices_ and statuses_.
  int TestSome();
  absl::Status FinishSome(const Call& call);
  void TakeFarewells();
  // Fails when this exchange needs somebody who has left.
  absl::Status CheckFarewells(const Call& call);
  // Whether memory of this exchange is still read or written. A peer who has left reads no more.
  bool AnyInUse() const;
  std::vector<int> Missing() const;

  int64_t PartBytes() const {
    constexpr int64_t kLargestBytes = int64_t{1} << 30;  // counts are int
    return std::clamp<int64_t>(settings().max_message_bytes, 1, kLargestBytes);
  }
  static absl::Status Check(const Call& call, int peer, int code) {
    if (code == MPI_SUCCESS) return absl::OkStatus();
    return absl::AbortedError(ToString(call.label) + ": the exchange with rank " +
                              std::to_string(peer) + " failed: " + MpiErrorText(code));
  }

  MPI_Comm comm_;
  const Group group_;
  std::unique_ptr<Greeting[]> greetings_;  // for each rank
  Greeting arrived_;
  std::map<int, Farewell> farewells_;  // of those who have left

  // Of the exchange at hand; kept for their capacity.
  std::vector<int> awaited_;     // those who have not greeted
  std::vector<bool> mentioned_;  // of each rank: has a greeting of this operation
  std::vector<MPI_Request> requests_;
  std::vector<Transfer> transfers_;  // of each request
  int64_t unfinished_ = 0;           // requests
  int64_t events_ = 0;               // greetings taken, requests started and finished, ever
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

MpiCommunicator::MpiCommunicator(MPI_Comm owned, const Group& group)
    : PointToPointCommunicator(group.rank, group.size),
      comm_(owned),
      group_(group),
      greetings_(std::make_unique<Greeting[]>(group.size)),
      mentioned_(group.size) {}

MpiCommunicator::~MpiCommunicator() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!finalized) {
    LeaveIfCancelled();
    // Messages of a broken one may be on their way yet, and must not meet a later communicator that
    // would get the same context: it is kept until MPI ends.
    if (!broken()) MPI_Comm_free(&comm_);
  }
}

absl::Status MpiCommunicator::Exchange(const Call& call, std::span<const Outgoing> outgoing,
                                       std::span<const Incoming> incoming) {
  const Operation operation{call, outgoing, incoming};
  const Clock::time_point deadline = Deadline();
  ZH_RETURN_IF_ERROR(Greet(operation));
  Backoff backoff;
  while (!awaited_.empty() || unfinished_ > 0) {
    const int64_t events_before = events_;
    TakeFarewells();
    ZH_RETURN_IF_ERROR(TakeGreetings(operation));
    ZH_RETURN_IF_ERROR(FinishSome(call));
    // Only now: what those who left had done for this exchange before counts.
    ZH_RETURN_IF_ERROR(CheckFarewells(call));
    if (events_ != events_before) {
      backoff.Progressed();
    } else if (cancelled()) {
      return Cancelled(call.label);
    } else if (Clock::now() >= deadline) {
      return TimedOut(call.label, Missing());
    } else {
      backoff.Pause();
    }
  }
  return absl::OkStatus();
}

absl::Status MpiCommunicator::Greet(const Operation& operation) {
  awaited_.clear();
  requests_.clear();
  transfers_.clear();
  unfinished_ = 0;
  std::fill(mentioned_.begin(), mentioned_.end(), false);
  for (const Incoming& message : operation.incoming) {
    GreetingFor(operation.call, message.peer).incoming.Add(message.bytes);
  }
  for (const Outgoing& message : operation.outgoing) {
    Greeting& greeting = GreetingFor(operation.call, message.peer);
    if (greeting.outgoing.bytes + message.bytes <= kShortBytes) {
      std::copy_n(static_cast<const std::byte*>(message.data), message.bytes,
                  greeting.data + greeting.outgoing.bytes);
    }
    greeting.outgoing.Add(message.bytes);
  }
  for (const int peer : awaited_) {
    const Greeting& greeting = greetings_[peer];
    size_t bytes = offsetof(Greeting, data);
    if (greeting.outgoing.bytes <= kShortBytes) bytes += greeting.outgoing.bytes;
    MPI_Request request = MPI_REQUEST_NULL;
    ZH_RETURN_IF_ERROR(Check(operation.call, peer,
                             MPI_Isend(&greeting, static_cast<int>(bytes), MPI_BYTE, peer,
                                       kGreetingTag, comm_, &request)));
    Track({peer, Kind::kOwn}, request);
  }
  return absl::OkStatus();
}

Greeting& MpiCommunicator::GreetingFor(const Call& call, int peer) {
  Greeting& greeting = greetings_[peer];
  if (!mentioned_[peer]) {
    mentioned_[peer] = true;
    awaited_.push_back(peer);
    greeting.tag = call.tag;
    greeting.outgoing = {};
    greeting.incoming = {};
    greeting.part_bytes = PartBytes();
    std::copy_n(call.text, kLabelBytes, greeting.label);
  }
  return greeting;
}

absl::Status MpiCommunicator::TakeGreetings(const Operation& operation) {
  for (size_t i = 0; i < awaited_.size();) {
    bool arrived = false;
    ZH_RETURN_IF_ERROR(TakeGreeting(operation, awaited_[i], &arrived));
    if (arrived) {
      awaited_.erase(awaited_.begin() + i);
    } else {
      ++i;
    }
  }
  return absl::OkStatus();
}

absl::Status MpiCommunicator::TakeGreeting(const Operation& operation, int peer, bool* arrived) {
  const Call& call = operation.call;
  int found = 0;
  MPI_Message handle = MPI_MESSAGE_NULL;
  MPI_Status status;
  ZH_RETURN_IF_ERROR(
      Check(call, peer, MPI_Improbe(peer, kGreetingTag, comm_, &found, &handle, &status)));
  *arrived = found;
  if (!found) return absl::OkStatus();
  ZH_RETURN_IF_ERROR(Check(
      call, peer, MPI_Mrecv(&arrived_, sizeof(arrived_), MPI_BYTE, &handle, MPI_STATUS_IGNORE)));
  ++events_;

  const Greeting& ours = greetings_[peer];
  if (arrived_.tag != ours.tag) return OtherOperation(call, peer, arrived_.label);
  if (arrived_.outgoing.bytes != ours.incoming.bytes) {
    return WrongSize(call, peer, arrived_.outgoing.bytes, ours.incoming.bytes);
  }
  if (arrived_.incoming.bytes != ours.outgoing.bytes) {
    return WrongSize(call, peer, arrived_.incoming.bytes, ours.outgoing.bytes);
  }
  if (arrived_.outgoing.hash != ours.incoming.hash ||
      arrived_.incoming.hash != ours.outgoing.hash || arrived_.part_bytes != ours.part_bytes) {
    return OtherOperation(call, peer, arrived_.label);
  }
  ZH_RETURN_IF_ERROR(ReceiveData(operation, peer));
  return SendData(operation, peer);
}

absl::Status MpiCommunicator::ReceiveData(const Operation& operation, int peer) {
  const std::byte* with_greeting = arrived_.outgoing.bytes <= kShortBytes ? arrived_.data : nullptr;
  for (const Incoming& message : operation.incoming) {
    if (message.peer != peer) continue;
    auto* data = static_cast<std::byte*>(message.data);
    if (with_greeting != nullptr) {
      std::copy_n(with_greeting, message.bytes, data);
      with_greeting += message.bytes;
      continue;
    }
    ZH_RETURN_IF_ERROR(StartParts(operation.call, {peer, Kind::kIncoming}, message.bytes,
                                  [&](int64_t offset, int bytes, MPI_Request* request) {
                                    return MPI_Irecv(data + offset, bytes, MPI_BYTE, peer, kDataTag,
                                                     comm_, request);
                                  }));
  }
  return absl::OkStatus();
}

absl::Status MpiCommunicator::SendData(const Operation& operation, int peer) {
  if (greetings_[peer].outgoing.bytes <= kShortBytes) return absl::OkStatus();  // it had them
  for (const Outgoing& message : operation.outgoing) {
    if (message.peer != peer) continue;
    const auto* data = static_cast<const std::byte*>(message.data);
    ZH_RETURN_IF_ERROR(StartParts(operation.call, {peer, Kind::kOutgoing}, message.bytes,
                                  [&](int64_t offset, int bytes, MPI_Request* request) {
                                    return MPI_Isend(data + offset, bytes, MPI_BYTE, peer, kDataTag,
                                                     comm_, request);
                                  }));
  }
  return absl::OkStatus();
}

template <typename Start>
absl::Status MpiCommunicator::StartParts(const Call& call, Transfer transfer, int64_t bytes,
                                         const Start& start) {
  for (int64_t offset = 0; offset < bytes; offset += PartBytes()) {
    const int part = static_cast<int>(std::min(PartBytes(), bytes - offset));
    MPI_Request request = MPI_REQUEST_NULL;
    ZH_RETURN_IF_ERROR(Check(call, transfer.peer, start(offset, part, &request)));
    Track(transfer, request);
  }
  return absl::OkStatus();
}

void MpiCommunicator::Track(Transfer transfer, MPI_Request request) {
  transfers_.push_back(transfer);
  requests_.push_back(request);
  ++unfinished_;
  ++events_;
}

absl::Status MpiCommunicator::FinishSome(const Call& call) {
  const int64_t events_before = events_;
  const int code = TestSome();
  if (code == MPI_SUCCESS) return absl::OkStatus();
  for (int64_t i = 0; code == MPI_ERR_IN_STATUS && i < events_ - events_before; ++i) {
    ZH_RETURN_IF_ERROR(Check(call, transfers_[indices_[i]].peer, statuses_[i].MPI_ERROR));
  }
  return Check(call, rank(), code);
}

int MpiCommunicator::TestSome() {
  if (indices_.size() < requests_.size()) {
    indices_.resize(requests_.size());
    statuses_.resize(requests_.size());
  }
  int finished = 0;
  const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &finished,
                                indices_.data(), statuses_.data());
  if (finished == MPI_UNDEFINED) return MPI_SUCCESS;
  unfinished_ -= finished;
  events_ += finished;
  return code;
}

void MpiCommunicator::TakeFarewells() {
  for (;;) {
    int found = 0;
    MPI_Message handle = MPI_MESSAGE_NULL;
    MPI_Status status;
    MPI_Improbe(MPI_ANY_SOURCE, kFarewellTag, comm_, &found, &handle, &status);
    if (!found) return;
    FarewellMessage message;
    MPI_Mrecv(&message, sizeof(message), MPI_BYTE, &handle, MPI_STATUS_IGNORE);
    farewells_[status.MPI_SOURCE] = {.origin = message.origin,
                                     .code = static_cast<absl::StatusCode>(message.code),
                                     .text = message.text};
  }
}

absl::Status MpiCommunicator::CheckFarewells(const Call& call) {
  if (farewells_.empty()) return absl::OkStatus();
  for (const int peer : Missing()) {
    const auto farewell = farewells_.find(peer);
    if (farewell != farewells_.end()) return PeerLeft(call.label, farewell->second);
  }
  return absl::OkStatus();
}

void MpiCommunicator::Leave(const Farewell& farewell) {
  auto message = std::make_unique<FarewellMessage>();
  message->origin = farewell.origin;
  message->code = static_cast<int32_t>(farewell.code);
  std::snprintf(message->text, sizeof(message->text), "%s", farewell.text.c_str());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(message.get(), sizeof(*message), MPI_BYTE, peer, kFarewellTag, comm_, &request);
    Track({peer, Kind::kOwn}, request);
  }
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] != MPI_REQUEST_NULL && transfers_[i].kind == Kind::kIncoming)
      MPI_Cancel(&requests_[i]);
  }
  constexpr std::chrono::seconds kPatience{1};  // with those who are reading
  const Clock::time_point end = Clock::now() + kPatience;
  Backoff backoff;
  for (TestSome(); AnyInUse() && Clock::now() < end; TestSome()) {
    TakeFarewells();
    backoff.Pause();
  }
  bool own_left = false;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    own_left |= transfers_[i].kind == Kind::kOwn;
    MPI_Request_free(&requests_[i]);
  }
  if (own_left) KeepUntilMpiEnds({std::move(message), std::move(greetings_)});
}

bool MpiCommunicator::AnyInUse() const {
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] == MPI_REQUEST_NULL) continue;
    if (transfers_[i].kind == Kind::kIncoming || !farewells_.contains(transfers_[i].peer))
      return true;
  }
  return false;
}

std::vector<int> MpiCommunicator::Missing() const {
  std::vector<int> missing = awaited_;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i] != MPI_REQUEST_NULL) missing.push_back(transfers_[i].peer);
  }
  return missing;
}

absl::Status CheckUsable(MPI_Comm comm) {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (!initialized || finalized) {
    return absl::FailedPreconditionError(finalized
                                             ? "MPI is finalised already"
                                             : "MPI is not initialised; MpiSession::Start does it");
  }
  if (comm == MPI_COMM_NULL) {
    return absl::InvalidArgumentError("the communicator is MPI_COMM_NULL: this rank is not in it");
  }
  int inter = 0;
  MPI_Comm_test_inter(comm, &inter);
  if (inter) return absl::InvalidArgumentError("the communicator is an inter-communicator");
  return absl::OkStatus();
}

absl::Status FromMpi(int code) {
  return code == MPI_SUCCESS ? absl::OkStatus() : absl::InternalError(MpiErrorText(code));
}

// The ranks of `comm` that share this node's memory.
absl::Status FindLocalRanks(MPI_Comm comm, MpiCommunicator::Group* group) {
  MPI_Comm node = MPI_COMM_NULL;
  ZH_RETURN_IF_ERROR(
      FromMpi(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, group->rank, MPI_INFO_NULL, &node)));
  MPI_Comm_rank(node, &group->local_rank);
  MPI_Comm_size(node, &group->local_size);
  return FromMpi(MPI_Comm_free(&node));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Communicator>> CreateMpiCommunicator(MPI_Comm comm) {
  ZH_RETURN_IF_ERROR(CheckUsable(comm));
  MPI_Comm own = MPI_COMM_NULL;
  ZH_RETURN_IF_ERROR(FromMpi(MPI_Comm_dup(comm, &own)));
  MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN);
  MpiCommunicator::Group group{};
  MPI_Comm_rank(own, &group.rank);
  MPI_Comm_size(own, &group.size);
  if (absl::Status status = FindLocalRanks(own, &group); !status.ok()) {
    MPI_Comm_free(&own);
    return status;
  }
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  group.any_thread = level == MPI_THREAD_MULTIPLE;
  return std::make_shared<MpiCommunicator>(own, group);
}

std::string MpiErrorText(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, length);
}

}  // namespace zerohold::comm
