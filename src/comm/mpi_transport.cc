// Invariants:
//  1. A message of n bytes travels as n / limit full parts and one shorter part, which may be
//  empty: a
//     receiver finds a message that is longer or shorter than it expects by the length of one part.
//  2. MPI's errors come back as codes; nothing here aborts.
//  3. After a failure no receive is left that could write into its buffer when its sender comes
//  late: those
//     that nobody has matched are cancelled. One that was cut in the middle gets a second to end;
//     memory of the operands should outlive the communicator anyhow.
#include "src/comm/mpi_transport.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "src/base/status_macros.h"
#include "src/comm/point_to_point.h"

namespace zerohold::comm {
namespace {

using Clock = std::chrono::steady_clock;

// How a wait spends its time: at first it polls, since small messages take microseconds; then it
// gives the core to others, who may be the ranks it waits for; then it sleeps, since compute
// threads share it.
class Backoff {
 public:
  void Pause() {
    ++polls_;
    if (polls_ <= kSpins) return;
    if (polls_ <= kSpins + kYields) {
      sched_yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(2 * sleep_, kLongestSleep);
  }
  void Progressed() { *this = {}; }

 private:
  static constexpr int kSpins = 20;
  static constexpr int kYields = 100;
  static constexpr std::chrono::microseconds kLongestSleep{200};
  int polls_ = 0;
  std::chrono::microseconds sleep_{20};
};

class MpiCommunicator final : public PointToPointCommunicator {
 public:
  struct Group {
    int rank, size, local_rank, local_size;
    bool any_thread;
    uint32_t largest_tag;
  };
  MpiCommunicator(MPI_Comm owned, const Group& group)
      : PointToPointCommunicator(group.rank, group.size), comm_(owned), group_(group) {}
  ~MpiCommunicator() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized) MPI_Comm_free(&comm_);
  }
  int local_rank() const override { return group_.local_rank; }
  int local_size() const override { return group_.local_size; }
  bool any_thread() const override { return group_.any_thread; }

 protected:
  absl::Status Exchange(const Call& call, std::span<const Outgoing> outgoing,
                        std::span<const Incoming> incoming) override {
    parts_.clear();
    requests_.clear();
    absl::Status status = Post(call, outgoing, incoming);
    if (status.ok()) status = WaitAll(call);
    if (!status.ok()) Abandon();
    return status;
  }

 private:
  struct Part {
    int peer;
    int bytes;
    int64_t message_bytes;
    bool incoming;
  };

  absl::Status Post(const Call& call, std::span<const Outgoing> outgoing,
                    std::span<const Incoming> incoming) {
    const int tag = static_cast<int>(call.tag % (group_.largest_tag + 1));
    for (const Incoming& message : incoming) {
      const auto start = [&](int64_t offset, int bytes, MPI_Request* request) {
        return MPI_Irecv(static_cast<std::byte*>(message.data) + offset, bytes, MPI_BYTE,
                         message.peer, tag, comm_, request);
      };
      ZH_RETURN_IF_ERROR(PostParts(call, {message.peer, 0, message.bytes, true}, start));
    }
    for (const Outgoing& message : outgoing) {
      const auto start = [&](int64_t offset, int bytes, MPI_Request* request) {
        return MPI_Isend(static_cast<const std::byte*>(message.data) + offset, bytes, MPI_BYTE,
                         message.peer, tag, comm_, request);
      };
      ZH_RETURN_IF_ERROR(PostParts(call, {message.peer, 0, message.bytes, false}, start));
    }
    return absl::OkStatus();
  }

  // Cuts a message into parts and starts them; see invariant 1.
  template <typename Start>
  absl::Status PostParts(const Call& call, Part part, const Start& start) {
    constexpr int64_t kLargestPartBytes = int64_t{1} << 30;  // counts are int
    const int64_t limit = std::clamp<int64_t>(settings().max_message_bytes, 1, kLargestPartBytes);
    for (int64_t offset = 0; offset <= part.message_bytes; offset += limit) {
      part.bytes = static_cast<int>(std::min(limit, part.message_bytes - offset));
      MPI_Request request = MPI_REQUEST_NULL;
      if (const int code = start(offset, part.bytes, &request); code != MPI_SUCCESS) {
        return Failed(call, part, code);
      }
      parts_.push_back(part);
      requests_.push_back(request);
    }
    return absl::OkStatus();
  }

  absl::Status WaitAll(const Call& call) {
    const Clock::time_point deadline = Deadline();
    Backoff backoff;
    for (size_t left = requests_.size(); left > 0;) {
      const int completed = TestSome();
      for (int i = 0; i < completed; ++i) {
        ZH_RETURN_IF_ERROR(Completed(call, parts_[indices_[i]], statuses_[i]));
      }
      left -= completed;
      if (completed > 0) {
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

  // Returns how many requests have ended; their indices and statuses are the first in the arrays.
  int TestSome() {
    const int count = static_cast<int>(requests_.size());
    if (indices_.size() < requests_.size()) {
      indices_.resize(count);
      statuses_.resize(count);
    }
    // Only after MPI_ERR_IN_STATUS does MPI set these; else they must say success.
    for (MPI_Status& status : std::span(statuses_).first(count)) status.MPI_ERROR = MPI_SUCCESS;
    int completed = 0;
    MPI_Testsome(count, requests_.data(), &completed, indices_.data(), statuses_.data());
    return completed == MPI_UNDEFINED ? 0 : completed;
  }

  absl::Status Completed(const Call& call, const Part& part, const MPI_Status& status) {
    int error_class = MPI_SUCCESS;
    MPI_Error_class(status.MPI_ERROR, &error_class);
    if (error_class == MPI_ERR_TRUNCATE)
      return WrongSize(call.label, part.peer, part.message_bytes);
    if (error_class != MPI_SUCCESS) return Failed(call, part, status.MPI_ERROR);
    int bytes = part.bytes;
    if (part.incoming) MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (bytes != part.bytes) return WrongSize(call.label, part.peer, part.message_bytes);
    return absl::OkStatus();
  }

  static absl::Status Failed(const Call& call, const Part& part, int code) {
    return absl::AbortedError(ToString(call.label) + ": a message " +
                              (part.incoming ? "from" : "to") + " rank " +
                              std::to_string(part.peer) + " failed: " + MpiErrorText(code));
  }

  std::vector<int> Missing() const {
    std::vector<int> missing;
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (requests_[i] != MPI_REQUEST_NULL) missing.push_back(parts_[i].peer);
    }
    return missing;
  }

  // See invariant 3.
  void Abandon() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      if (parts_[i].incoming) {
        MPI_Cancel(&requests_[i]);
      } else {
        MPI_Request_free(&requests_[i]);
      }
    }
    const Clock::time_point deadline = Clock::now() + std::chrono::seconds(1);
    Backoff backoff;
    while (!Missing().empty() && Clock::now() < deadline) {
      if (TestSome() == 0) backoff.Pause();
    }
    for (MPI_Request& request : requests_) {
      if (request != MPI_REQUEST_NULL) MPI_Request_free(&request);
    }
  }

  MPI_Comm comm_;
  const Group group_;
  // Of the exchange at hand, in parallel; kept for their capacity.
  std::vector<Part> parts_;
  std::vector<MPI_Request> requests_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

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

absl::Status Check(int code) {
  return code == MPI_SUCCESS ? absl::OkStatus() : absl::InternalError(MpiErrorText(code));
}

// The ranks of `comm` that share this node's memory.
absl::Status FindLocalRanks(MPI_Comm comm, MpiCommunicator::Group* group) {
  MPI_Comm node = MPI_COMM_NULL;
  ZH_RETURN_IF_ERROR(
      Check(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, group->rank, MPI_INFO_NULL, &node)));
  MPI_Comm_rank(node, &group->local_rank);
  MPI_Comm_size(node, &group->local_size);
  return Check(MPI_Comm_free(&node));
}

}  // namespace

absl::StatusOr<std::shared_ptr<Communicator>> CreateMpiCommunicator(MPI_Comm comm) {
  ZH_RETURN_IF_ERROR(CheckUsable(comm));
  MPI_Comm own = MPI_COMM_NULL;
  ZH_RETURN_IF_ERROR(Check(MPI_Comm_dup(comm, &own)));
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
  const int* largest_tag = nullptr;
  int found = 0;
  MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest_tag, &found);
  constexpr int kLeastLargestTag = 32767;  // of every MPI
  group.largest_tag = found ? *largest_tag : kLeastLargestTag;
  return std::make_shared<MpiCommunicator>(own, group);
}

std::string MpiErrorText(int code) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(text, length);
}

}  // namespace zerohold::comm
