#include "src/comm/point_to_point.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string>

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

void PointToPointCommunicator::Cancel() {
  cancelled_.store(true, std::memory_order_release);
  Interrupt();
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
  Shape shape{.messages = 1};
  for (const layout::Range& shard : shards) {
    shape.bytes += shard.size() * elem_bytes;
    if (settings_.check_order) shape.hash = Mix(shape.hash, std::array{shard.begin, shard.end});
  }
  ZH_RETURN_IF_ERROR(Begin(label, shape));

  const layout::Range own = shards[rank_];
  const int64_t own_bytes = own.size() * elem_bytes;
  const int64_t slot_bytes = base::AlignUp(own_bytes, kScratchAlignBytes);
  ZH_CHECK(static_cast<int64_t>(scratch_.size()) >= slot_bytes * (size_ - 1), scratch_.size(),
           slot_bytes);
  addends_[rank_] = Advance(operands.addends, own.begin * elem_bytes);
  for (int k = 1; k < size_; ++k) {
    const layout::Range& theirs = shards[After(k)];
    outgoing_.push_back({After(k), Advance(operands.addends, theirs.begin * elem_bytes),
                         theirs.size() * elem_bytes});
    void* slot = scratch_.data() + slot_bytes * (k - 1);
    incoming_.push_back({Before(k), slot, own_bytes});
    addends_[Before(k)] = slot;
  }
  CountSent(Traffic::kReduceScatter);
  ZH_RETURN_IF_ERROR(Run(label));
  tree_sum_.Run({.addends = addends_,
                 .dtype = operands.dtype,
                 .elems = own.size(),
                 .divisor = operands.divisor,
                 .out = operands.out,
                 .norm = operands.norm,
                 .norm_weight = operands.norm_weight});
  return absl::OkStatus();
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
  if (broken_.ok() && cancelled()) broken_ = Cancelled(label);
  if (!broken_.ok()) return broken_;
  ++sequence_;
  outgoing_.clear();
  incoming_.clear();
  if (settings_.check_order && size_ > 1) {
    ZH_RETURN_IF_ERROR(CheckOrder(label, shape));
    outgoing_.clear();
    incoming_.clear();
  }
  tag_ = Mix(HashOf(label), std::array{sequence_, shape.messages}) & kTagMask;
  return absl::OkStatus();
}

absl::Status PointToPointCommunicator::CheckOrder(const Label& label, const Shape& shape) {
  records_.resize(size_);
  OrderRecord& mine = records_[rank_];
  mine = {.sequence = sequence_,
          .bytes = shape.bytes,
          .hash = Mix(HashOf(label), std::array{shape.messages, static_cast<int64_t>(shape.hash)}),
          .text = {}};
  FormatLabel(label, mine.text);
  for (int k = 1; k < size_; ++k) {
    outgoing_.push_back({After(k), &mine, sizeof(mine)});
    incoming_.push_back({Before(k), &records_[Before(k)], sizeof(mine)});
  }
  tag_ = sequence_ & kTagMask;  // meets whatever the others do next
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
    broken_ = absl::AbortedError("operation " + std::to_string(sequence_) +
                                 " differs: " + describe(0, first) + ", " + describe(rank, other) +
                                 (same_name ? "; sizes, pieces or root are not the same" : ""));
    return broken_;
  }
  return absl::OkStatus();
}

absl::Status PointToPointCommunicator::Run(const Label& label) {
  absl::Status status = Exchange({label, tag_}, outgoing_, incoming_);
  if (!status.ok()) broken_ = status;
  return status;
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

absl::Status PointToPointCommunicator::Cancelled(const Label& label) {
  return absl::CancelledError(ToString(label) + ": this rank has given up");
}

absl::Status PointToPointCommunicator::WrongSize(const Label& label, int peer, int64_t bytes) {
  return absl::AbortedError(ToString(label) + ": rank " + std::to_string(peer) +
                            " has another size for it than the " + std::to_string(bytes) +
                            " bytes here; check that every rank makes the same calls");
}

}  // namespace zerohold::comm
