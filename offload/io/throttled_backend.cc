// A transfer moves at once, and its completion is held back until a link of the set rate would have
// carried it. Each link carries one transfer after the other; the latency comes on top and is
// shared by all that are in flight, as on a disk.
#include <algorithm>
#include <cstdint>

#include "offload/io/backends.h"
#include "offload/io/decorator.h"
#include "src/telemetry/trace.h"

namespace zerohold::io {
namespace {

struct Passed {
  uint64_t tag = 0;
  Direction direction = Direction::kRead;
  int64_t submitted_ns = 0;
};
struct Held {
  Completion completion;
  int64_t due_ns = 0;
};

class ThrottledBackend final : public Decorator<Passed, Held> {
 public:
  ThrottledBackend(std::unique_ptr<IoBackend> under, const ThrottleSpec& spec)
      : Decorator("throttled", std::move(under)),
        latency_ns_(static_cast<int64_t>(spec.latency_s * 1e9)),
        links_{{spec.read_rate}, {spec.write_rate}} {}

 private:
  struct Link {
    double rate = 0.0;
    int64_t free_ns = 0;  // when it has carried what it was given so far
  };

  void Start(const Transfer& transfer) override {
    Pass(transfer, {transfer.tag, transfer.direction, telemetry::NowNs()});
  }

  // What was really moved is what the link is charged for.
  void Arrive(const Passed& passed, int64_t result) override {
    Link& link = links_[passed.direction == Direction::kRead ? 0 : 1];
    int64_t carried_ns = passed.submitted_ns;
    if (result > 0 && link.rate > 0.0) {
      const double carry_s = static_cast<double>(result) / link.rate;
      link.free_ns =
          std::max(link.free_ns, passed.submitted_ns) + static_cast<int64_t>(carry_s * 1e9);
      carried_ns = link.free_ns;
    }
    held_.push_back({{passed.tag, result}, carried_ns + latency_ns_});
  }

  int64_t ReleaseDue() override {
    const int64_t now_ns = telemetry::NowNs();
    int64_t next_ns = kNever;
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

  const int64_t latency_ns_;
  Link links_[2];  // reads, writes
};

}  // namespace

std::unique_ptr<IoBackend> CreateThrottledBackend(std::unique_ptr<IoBackend> under,
                                                  const ThrottleSpec& spec) {
  return std::make_unique<ThrottledBackend>(std::move(under), spec);
}

}  // namespace zerohold::io
