#include "src/comm/point_to_point.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/hash.h"
#include "src/base/status_macros.h"
#include "src/comm/label.h"

namespace zerohold::comm {
namespace {

uint64_t Mix(uint64_t seed, std::span<const int64_t> words) {
  return base::Hash(std::as_bytes(words), seed);
}

uint64_t HashOf(const Label& label) {
  const uint64_t names = base::Hash(label.of, base::Hash(label.item, base::Hash(label.verb)));
  return Mix(names, {&label.index, 1});
}

template <typename T>
T* Advance(T* base, int64_t bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return static_cast<Byte*>(base) + bytes;
}

}  // namespace

PointToPointCommunicator::PointToPointCommunicator(int rank, int size)
    : rank_(rank), size_(size), tree_sum_(size), addends_(size) {}

void PointToPointCommunicator::Cancel(const absl::Status& why) {
  if (!why.ok()) NoteCause({rank_, why.code(), std::string(why.message())});
  cancelled_.store(true, std::memory_order_release);
  Interrupt();
}

absl::StatusOr<std::shared_ptr<Communicator>> PointToPointCommunicator::Duplicate() {
  // A message library waits for ever for a rank that does not come; we do not.
  ZH_RETURN_IF_ERROR(AllReduce({.verb = "Duplicate"}, {}, {}, {}));
  ZH_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> twin, Twin());
  twin->Configure(settings_);
  std::static_pointer_cast<PointToPointCommunicator>(twin)->cause_ = cause_;
  return twin;
}

absl::Status PointToPointCommunicator::AllGather(const Label& label, void* buffer,
                                                 std::span<const Piece> pieces) {
  Shape shape{.messages = static_cast<int64_t>(pieces.size())};
  for (const Piece& piece : pieces) {
    ZH_CHECK(piece.rank >= 0 && piece.rank < size_, piece.rank, size_);
    shape.bytes += piece.bytes;
    if (settings_.check_order) {
      shape.hash =
          Mix(shape.hash, std::array{int64_t{piece.rank}, piece.offset_bytes, piece.bytes});
    }
  }
  ZH_RETURN_IF_ERROR(Begin(label, shape));
  for (const Piece& piece : pieces) {
    void* data = Advance(buffer, piece.offset_bytes);
    if (piece.rank != rank_) {
      incoming_.push_back({piece.rank, data, piece.bytes});
    } else {
      for (int k = 1; k < size_; ++k) outgoing_.push_back({After(k), data, piece.bytes});
    }
  }
  CountSent(Traffic::kAllGather);
  return Run(label);
}

absl::Status PointToPointCommunicator::ReduceScatter(const Label& label,
                                                     const ReduceScatterOperands& operands) {
  const std::span<const layout::Range> shards = operands.shards;
  ZH_CHECK(static_cast<int>(shards.size()) == size_, shards.size(), size_);
  const int64_t elem_bytes = SizeOf(operands.dtype);
  Shape shape{.messages = 1, .hash = static_cast<uint64_t>(operands.dtype)};
  for (const layout::Range& shard : shards) {
    shape.bytes += shard.size() * elem_bytes;
    if (settings_.check_order) shape.hash = Mix(shape.hash, std::array{shard.begin, shard.end});
  }
  ZH_RETURN_IF_ERROR(Begin(label, shape));

  // The scratch: a slot for each peer's part of the own shard; its last bytes stay zero.
  const layout::Range own = shards[rank_];
  const int64_t own_bytes = own.size() * elem_bytes;
  const int64_t slot_bytes = base::AlignUp(own_bytes, kScratchAlignBytes);
  int64_t longest = 0;
  for (const layout::Range& shard : shards) longest = std::max(longest, shard.size());
  const int64_t enough_bytes = ScratchBytes(longest, operands.dtype, size_);
  ZH_CHECK(std::ssize(scratch_) >= enough_bytes, scratch_.size(), enough_bytes);
  const std::byte* const zeros = scratch_.data() + scratch_.size() - enough_bytes / size_;
  const auto part = [&](const layout::Range& shard) -> const void* {
    if (operands.addends == nullptr) return zeros;
    return Advance(operands.addends, shard.begin * elem_bytes);
  };
  addends_[rank_] = part(own);
  for (int k = 1; k < size_; ++k) {
    const layout::Range& theirs = shards[After(k)];
    outgoing_.push_back({After(k), part(theirs), theirs.size() * elem_bytes});
    void* slot = scratch_.data() + slot_bytes * (k - 1);
    incoming_.push_back({Before(k), slot, own_bytes});
    addends_[Before(k)] = slot;
  }
  CountSent(Traffic::kReduceScatter);
  ZH_RETURN_IF_ERROR(Run(label));
  tree_sum_.Run({.addends = addends_,
                 .dtype = operands.dtype,
                 .weights = operands.weights,
                 .elems = own.size(),
                 .sums = operands.sums,
                 .mean = operands.mean});
  return absl::OkStatus();
}

void PointToPointCommunicator::FinishSum(const RunningSums& sums, int64_t rounds, int64_t elems,
                                         const Mean& mean) {
  tree_sum_.Finish(sums, rounds, elems, mean);
}

absl::Status PointToPointCommunicator::Broadcast(const Label& label, void* buffer, int64_t bytes,
                                                 int root) {
  ZH_CHECK(root >= 0 && root < size_, root, size_);
  ZH_RETURN_IF_ERROR(Begin(label, {.messages = root, .bytes = bytes}));
  if (rank_ != root) {
    incoming_.push_back({root, buffer, bytes});
  } else {
    for (int k = 1; k < size_; ++k) outgoing_.push_back({After(k), buffer, bytes});
  }
  return Run(label);
}

absl::Status PointToPointCommunicator::AllReduce(const Label& label, std::span<int64_t> bits,
                                                 std::span<int64_t> maxima,
                                                 std::span<int64_t> sums) {
  const int64_t words = static_cast<int64_t>(bits.size() + maxima.size() + sums.size());
  const int64_t bytes = words * static_cast<int64_t>(sizeof(int64_t));
  Shape shape{.messages = 1, .bytes = bytes};
  if (settings_.check_order) {
    shape.hash = Mix(0, std::array<int64_t, 2>{std::ssize(bits), std::ssize(maxima)});
  }
  ZH_RETURN_IF_ERROR(Begin(label, shape));
  if (std::ssize(words_) < words * size_) words_.resize(words * size_);
  int64_t* mine = words_.data() + words * rank_;
  std::copy(sums.begin(), sums.end(),
            std::copy(maxima.begin(), maxima.end(), std::copy(bits.begin(), bits.end(), mine)));
  for (int k = 1; k < size_; ++k) {
    outgoing_.push_back({After(k), mine, bytes});
    incoming_.push_back({Before(k), words_.data() + words * Before(k), bytes});
  }
  ZH_RETURN_IF_ERROR(Run(label));
  for (int k = 1; k < size_; ++k) {
    const int64_t* theirs = words_.data() + words * After(k);
    for (int64_t& word : bits) word |= *theirs++;
    for (int64_t& word : maxima) word = std::max(word, *theirs++);
    // Unsigned, so that a sum that wraps is the same wrong number everywhere and not undefined.
    for (int64_t& word : sums) {
      word = static_cast<int64_t>(static_cast<uint64_t>(word) + static_cast<uint64_t>(*theirs++));
    }
  }
  return absl::OkStatus();
}

absl::Status PointToPointCommunicator::Begin(const Label& label, const Shape& shape) {
  if (!broken_.ok()) return broken_;
  if (cancelled()) return Break(Cancelled(label));
  ++sequence_;
  FormatLabel(label, text_);
  outgoing_.clear();
  incoming_.clear();
  if (settings_.check_order && size_ > 1) {
    ZH_RETURN_IF_ERROR(CheckOrder(label, shape));
    outgoing_.clear();
    incoming_.clear();
  }
  tag_ = Mix(HashOf(label), std::array{sequence_, shape.messages});
  return absl::OkStatus();
}

absl::Status PointToPointCommunicator::CheckOrder(const Label& label, const Shape& shape) {
  records_.resize(size_);
  OrderRecord& mine = records_[rank_];
  mine.bytes = shape.bytes;
  mine.hash = Mix(HashOf(label), std::array{shape.messages, static_cast<int64_t>(shape.hash)});
  std::copy(std::begin(text_), std::end(text_), mine.text);
  for (int k = 1; k < size_; ++k) {
    outgoing_.push_back({After(k), &mine, sizeof(mine)});
    incoming_.push_back({Before(k), &records_[Before(k)], sizeof(mine)});
  }
  tag_ = sequence_;  // whatever the others do next
  ZH_RETURN_IF_ERROR(Run(label));

  // Every rank has all records, so all find the same difference.
  const OrderRecord& first = records_[0];
  for (int rank = 1; rank < size_; ++rank) {
    const OrderRecord& other = records_[rank];
    if (other.hash == first.hash && other.bytes == first.bytes) continue;
    const auto describe = [](int r, const OrderRecord& record) {
      return "rank " + std::to_string(r) + " calls " + record.text + " (" +
             std::to_string(record.bytes) + " bytes)";
    };
    const bool same_name = std::strcmp(first.text, other.text) == 0;
    return Break(absl::AbortedError(
        "operation " + std::to_string(sequence_) + " differs: " + describe(0, first) + ", " +
        describe(rank, other) + (same_name ? "; sizes, pieces or root are not the same" : "") +
        "; check that every rank makes the same calls in the same order"));
  }
  return absl::OkStatus();
}

absl::Status PointToPointCommunicator::Run(const Label& label) {
  absl::Status status = Exchange({label, text_, tag_}, outgoing_, incoming_);
  return status.ok() ? status : Break(std::move(status));
}

absl::Status PointToPointCommunicator::Break(absl::Status status) {
  broken_ = std::move(status);
  Leave(NoteCause({rank_, broken_.code(), std::string(broken_.message())}));
  return broken_;
}

Farewell PointToPointCommunicator::NoteCause(Farewell farewell) {
  std::lock_guard lock(cause_->mutex);
  if (!cause_->farewell) cause_->farewell = std::move(farewell);
  return *cause_->farewell;
}

void PointToPointCommunicator::LeaveIfCancelled() {
  if (cancelled() && broken_.ok()) (void)Break(Cancelled({.verb = "Close"}));
}

void PointToPointCommunicator::CountSent(Traffic traffic) {
  if (settings_.sent_bytes == nullptr) return;
  int64_t bytes = 0;
  for (const Outgoing& message : outgoing_) bytes += message.bytes;
  settings_.sent_bytes->Add(traffic, bytes);
}

std::chrono::steady_clock::time_point PointToPointCommunicator::Deadline() const {
  constexpr double kYearS = 3e7;  // clocks overflow somewhere beyond
  const std::chrono::duration<double> wait(std::min(settings_.timeout_s, kYearS));
  using Clock = std::chrono::steady_clock;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(wait);
}

absl::Status PointToPointCommunicator::TimedOut(const Label& label,
                                                std::vector<int> missing) const {
  std::sort(missing.begin(), missing.end());
  missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
  char seconds[32];
  std::snprintf(seconds, sizeof(seconds), "%g", settings_.timeout_s);
  std::string text = ToString(label) + ": waited " + seconds + " s for rank ";
  for (size_t i = 0; i < missing.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(missing[i]);
  }
  return absl::DeadlineExceededError(
      text + "; check that every rank makes the same calls, or raise communication_timeout_s");
}

absl::Status PointToPointCommunicator::Cancelled(const Label& label) const {
  return absl::CancelledError(ToString(label) + ": rank " + std::to_string(rank_) +
                              " has given up");
}

absl::Status PointToPointCommunicator::PeerLeft(const Label& label, const Farewell& farewell) {
  NoteCause(farewell);
  const std::string here = ToString(label) + ": ";
  const std::string rank = "rank " + std::to_string(farewell.origin);
  // Cancelled is for the rank whose owner wanted it.
  if (farewell.code == absl::StatusCode::kCancelled) {
    return absl::AbortedError(here + rank +
                              " has given up: it closed its engine in mid-step, or exited");
  }
  const bool late = farewell.code == absl::StatusCode::kDeadlineExceeded;
  const bool same = farewell.text.starts_with(here);  // it was in the same operation
  return absl::Status(late ? farewell.code : absl::StatusCode::kAborted,
                      here + rank + " failed: " + farewell.text.substr(same ? here.size() : 0));
}

absl::Status PointToPointCommunicator::OtherOperation(const Call& call, int peer,
                                                      const char* peers_text) const {
  const bool same_name = std::strcmp(call.text, peers_text) == 0;
  return absl::AbortedError(ToString(call.label) + ": rank " + std::to_string(peer) + " is in " +
                            (same_name ? "one with other pieces, root or number" : peers_text) +
                            "; check that every rank makes the same calls in the same order");
}

absl::Status PointToPointCommunicator::WrongSize(const Call& call, int peer, int64_t peers_bytes,
                                                 int64_t own_bytes) const {
  return absl::AbortedError(ToString(call.label) + ": rank " + std::to_string(peer) + " has " +
                            std::to_string(peers_bytes) + " bytes where rank " +
                            std::to_string(rank_) + " has " + std::to_string(own_bytes) +
                            "; check that every rank makes the same calls");
}

}  // namespace zerohold::comm
