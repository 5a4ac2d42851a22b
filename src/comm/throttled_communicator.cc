// The verb runs at once, and returns when the link would have carried it.
#include "src/comm/throttled_communicator.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "src/base/status_macros.h"

namespace zerohold::comm {
namespace {

using Clock = std::chrono::steady_clock;

// Shared by a communicator and its duplicates.
class Link {
 public:
  explicit Link(const LinkSpec& spec) : spec_(spec) {}

  // Until it has carried what was begun then; or at once, from a Cancel on.
  void Carry(Clock::time_point begin, int64_t bytes) {
    std::unique_lock lock(mutex_);
    Clock::time_point carried = begin;
    if (spec_.rate > 0.0) {
      free_ = std::max(free_, begin) + Seconds(static_cast<double>(bytes) / spec_.rate);
      carried = free_;
    }
    cancelled_.wait_until(lock, carried + Seconds(spec_.latency_s), [this] { return over_; });
  }
  void Cancel() {
    const std::lock_guard lock(mutex_);
    over_ = true;
    cancelled_.notify_all();
  }

 private:
  static Clock::duration Seconds(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
  }

  const LinkSpec spec_;
  std::mutex mutex_;
  std::condition_variable cancelled_;
  Clock::time_point free_{};  // when it has carried what it was given so far
  bool over_ = false;
};

class ThrottledCommunicator final : public Communicator {
 public:
  ThrottledCommunicator(std::shared_ptr<Communicator> under, std::shared_ptr<Link> link)
      : under_(std::move(under)), link_(std::move(link)) {
    settings_ = under_->settings();
  }

  int rank() const override { return under_->rank(); }
  int size() const override { return under_->size(); }
  int local_rank() const override { return under_->local_rank(); }
  int local_size() const override { return under_->local_size(); }
  bool any_thread() const override { return under_->any_thread(); }

  absl::StatusOr<std::shared_ptr<Communicator>> Duplicate() override {
    Prepare();
    ZH_ASSIGN_OR_RETURN(std::shared_ptr<Communicator> twin, under_->Duplicate());
    return std::make_shared<ThrottledCommunicator>(std::move(twin), link_);
  }
  void Cancel(const absl::Status& why) override {
    under_->Cancel(why);
    link_->Cancel();
  }

  absl::Status AllGather(const Label& label, void* buffer, std::span<const Piece> pieces) override {
    int64_t own_bytes = 0;
    for (const Piece& piece : pieces) own_bytes += piece.rank == rank() ? piece.bytes : 0;
    return Carry(own_bytes * Others(), [&] { return under_->AllGather(label, buffer, pieces); });
  }
  absl::Status ReduceScatter(const Label& label, const ReduceScatterOperands& operands) override {
    int64_t elems = 0;
    for (const layout::Range& shard : operands.shards) elems += shard.size();
    if (!operands.shards.empty()) elems -= operands.shards[rank()].size();
    return Carry(elems * SizeOf(operands.dtype),
                 [&] { return under_->ReduceScatter(label, operands); });
  }
  void FinishSum(const RunningSums& sums, int64_t rounds, int64_t elems,
                 const Mean& mean) override {
    under_->FinishSum(sums, rounds, elems, mean);
  }
  absl::Status Broadcast(const Label& label, void* buffer, int64_t bytes, int root) override {
    return Carry(rank() == root ? bytes * Others() : 0,
                 [&] { return under_->Broadcast(label, buffer, bytes, root); });
  }
  absl::Status AllReduce(const Label& label, std::span<int64_t> bits, std::span<int64_t> maxima,
                         std::span<int64_t> sums) override {
    const auto bytes =
        static_cast<int64_t>(bits.size_bytes() + maxima.size_bytes() + sums.size_bytes());
    return Carry(bytes * Others(), [&] { return under_->AllReduce(label, bits, maxima, sums); });
  }

 private:
  int64_t Others() const { return size() - 1; }

  // What the owner has told this one, the one that does the work has to know.
  void Prepare() {
    under_->Configure(settings_);
    under_->SetScratch(scratch_);
  }

  template <typename Verb>
  absl::Status Carry(int64_t bytes, const Verb& verb) {
    Prepare();
    const Clock::time_point begin = Clock::now();
    const absl::Status status = verb();
    if (status.ok() && Others() > 0) link_->Carry(begin, bytes);
    return status;
  }

  const std::shared_ptr<Communicator> under_;
  const std::shared_ptr<Link> link_;
};

}  // namespace

std::shared_ptr<Communicator> CreateThrottledCommunicator(std::shared_ptr<Communicator> under,
                                                          const LinkSpec& link) {
  return std::make_shared<ThrottledCommunicator>(std::move(under), std::make_shared<Link>(link));
}

}  // namespace zerohold::comm
