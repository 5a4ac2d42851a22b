// A transfer moves at once, and its completion is held back until a link of the set rate would have
// carried it. Each link carries one transfer after the other; the latency comes on top and is
// shared by all that are in flight, as on a disk.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "offload/io/backends.h"
#include "offload/io/completion_queue.h"
#include "offload/io/in_flight_table.h"
#include "src/telemetry/trace.h"

namespace zerohold::io {
namespace {

class ThrottledBackend final : public IoBackend {
 public:
  ThrottledBackend(std::unique_ptr<IoBackend> under, const ThrottleSpec& spec)
      : under_(std::move(under)),
        name_(std::string("throttled ") + under_->name()),
        latency_ns_(static_cast<int64_t>(spec.latency_s * 1e9)),
        links_{{spec.read_rate}, {spec.write_rate}} {}

  const char* name() const override { return name_.c_str(); }

  absl::Status Open(std::span<const int> descriptors, std::span<const std::span<std::byte>> memory,
                    int depth) override {
    passed_.Reset(depth);
    batch_.reserve(depth);
    arrived_.resize(depth);
    held_.reserve(depth);
    ready_.reserve(depth);
    return under_->Open(descriptors, memory, depth);
  }

  void Submit(std::span<const Transfer> transfers) override {
    const int64_t now_ns = telemetry::NowNs();
    batch_.assign(transfers.begin(), transfers.end());
    for (Transfer& transfer : batch_) {
      transfer.tag = static_cast<uint64_t>(passed_.Add({transfer.tag, transfer.direction, now_ns}));
    }
    under_->Submit(batch_);
  }

  int64_t Reap(std::span<Completion> completions, int64_t timeout_ns) override {
    const int64_t deadline_ns = telemetry::NowNs() + timeout_ns;
    for (;;) {
      const int64_t due_ns = std::min(deadline_ns, Release());
      const int64_t left_ns = std::max<int64_t>(due_ns - telemetry::NowNs(), 0);
      const int64_t count = under_->Reap(arrived_, ready_.empty() ? left_ns : 0);
      for (int64_t i = 0; i < count; ++i) Arrive(arrived_[i]);
      Release();
      if (count == 0 || !ready_.empty()) return TakeFront(ready_, completions);
    }
  }

  void Wake() override { under_->Wake(); }

 private:
  struct Link {
    double rate = 0.0;
    int64_t free_ns = 0;  // when it has carried what it was given so far
  };
  struct Passed {
    uint64_t tag = 0;
    Direction direction = Direction::kRead;
    int64_t submitted_ns = 0;
  };
  struct Held {
    Completion completion;
    int64_t due_ns = 0;
  };

  // What was really moved is what the link is charged for.
  void Arrive(const Completion& completion) {
    const Passed passed = passed_.Take(completion.tag);
    Link& link = links_[passed.direction == Direction::kRead ? 0 : 1];
    int64_t carried_ns = passed.submitted_ns;
    if (completion.result > 0 && link.rate > 0.0) {
      const double carry_s = static_cast<double>(completion.result) / link.rate;
      link.free_ns =
          std::max(link.free_ns, passed.submitted_ns) + static_cast<int64_t>(carry_s * 1e9);
      carried_ns = link.free_ns;
    }
    held_.push_back({{passed.tag, completion.result}, carried_ns + latency_ns_});
  }

  // Makes ready what is due; returns when the next one is.
  int64_t Release() {
    const int64_t now_ns = telemetry::NowNs();
    int64_t next_ns = std::numeric_limits<int64_t>::max();
    std::erase_if(held_, [&](const Held& held) {
      if (held.due_ns <= now_ns) {
        ready_.push_back(held.completion);
        return true;
      }
      next_ns = std::min(next_ns, held.due_ns);
      return false;
    });
    return next_ns;
  }

  std::unique_ptr<IoBackend> under_;
  const std::string name_;
  const int64_t latency_ns_;
  Link links_[2];  // reads, writes
  InFlightTable<Passed> passed_;
  std::vector<Transfer> batch_;
  std::vector<Completion> arrived_;
  std::vector<Held> held_;
  std::vector<Completion> ready_;
};

}  // namespace

std::unique_ptr<IoBackend> CreateThrottledBackend(std::unique_ptr<IoBackend> under,
                                                  const ThrottleSpec& spec) {
  return std::make_unique<ThrottledBackend>(std::move(under), spec);
}

}  // namespace zerohold::io
