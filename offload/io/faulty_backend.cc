// What happens to a transfer is a function of the seed and of its number, whatever happened to
// those before it.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "offload/io/backends.h"
#include "offload/io/decorator.h"
#include "src/base/align.h"

namespace zerohold::io {
namespace {

// The random numbers of one transfer (splitmix64, Steele, Lea and Flood 2014).
class Random {
 public:
  Random(int64_t seed, int64_t transfer)
      : state_(static_cast<uint64_t>(seed) * kGolden ^ static_cast<uint64_t>(transfer)) {
    Next();
  }
  uint64_t Next() {
    uint64_t z = state_ += kGolden;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  bool Hits(double probability) {
    return static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
  }

 private:
  static constexpr uint64_t kGolden = 0x9e3779b97f4a7c15;
  uint64_t state_;
};

struct Passed {
  Transfer whole;  // as it was asked for
  bool flip = false;
  int later = 0;  // completions that overtake this one
  uint64_t random = 0;
};
struct Held {
  Completion completion;
  int later = 0;
};

class FaultyBackend final : public Decorator<Passed, Held> {
 public:
  FaultyBackend(std::unique_ptr<IoBackend> under, const FaultSpec& spec, FaultSink told)
      : Decorator("faulty", std::move(under)), spec_(spec), told_(std::move(told)) {}

 private:
  // Draws in one fixed order: the probability of one kind does not move the others.
  void Start(const Transfer& transfer) override {
    const int64_t number = number_++;
    const bool writes = transfer.direction == Direction::kWrite;
    Random random(spec_.seed, number);
    const bool again = random.Hits(spec_.again) || Every(spec_.again_every, number);
    const bool eio = random.Hits(spec_.eio);
    const bool enospc = random.Hits(spec_.enospc) && writes;
    const bool stale = random.Hits(spec_.stale) && writes;
    const bool cut = random.Hits(spec_.short_transfer);
    Passed passed{.whole = transfer,
                  .flip = random.Hits(spec_.bit_flip) && !writes,
                  .later = random.Hits(spec_.late) ? static_cast<int>(1 + random.Next() % 4) : 0,
                  .random = random.Next()};
    if (number < spec_.first || number > spec_.last) {
      passed.flip = false;
      passed.later = 0;
      return Pass(transfer, passed);
    }
    if (again) return Answer(transfer, Fault::kAgain, number % 2 == 0 ? -EAGAIN : -EINTR);
    if (eio) return Answer(transfer, Fault::kEio, -EIO);
    if (enospc) return Answer(transfer, Fault::kEnospc, -ENOSPC);
    if (stale) return Answer(transfer, Fault::kStale, transfer.bytes);
    const int64_t blocks = transfer.bytes / base::kPageBytes;
    Transfer shorter = transfer;
    if (Every(spec_.halve_every, number)) {
      shorter.bytes = base::AlignUp(transfer.bytes / 2, base::kPageBytes);
    } else if (cut && (writes || blocks > 1)) {
      // A read of 0 bytes would be the end of the file.
      const int64_t least = writes ? 0 : 1;
      const auto choices = static_cast<uint64_t>(blocks - least);
      shorter.bytes = (least + static_cast<int64_t>(random.Next() % choices)) * base::kPageBytes;
    }
    if (random.Hits(spec_.lost)) return Tell(Fault::kLost, transfer);
    if (shorter.bytes == 0) return Answer(transfer, Fault::kShortTransfer, 0);
    if (shorter.bytes < transfer.bytes) Tell(Fault::kShortTransfer, transfer);
    Pass(shorter, passed);
  }

  bool Every(int64_t period, int64_t number) const {
    return period > 0 && number >= spec_.first && (number - spec_.first + 1) % period == 0;
  }

  void Tell(Fault fault, const Transfer& transfer, int64_t byte = 0) {
    if (told_) told_(fault, transfer, byte);
  }

  void Answer(const Transfer& transfer, Fault fault, int64_t result) {
    Tell(fault, transfer);
    Deliver({transfer.tag, result});
  }

  void Arrive(const Passed& passed, int64_t result) override {
    if (passed.flip && result > 0) {
      const bool all = spec_.flip_begin >= std::min(spec_.flip_end, result);
      const int64_t begin = all ? 0 : spec_.flip_begin;
      const int64_t end = all ? result : std::min(spec_.flip_end, result);
      const uint64_t bit = 8 * begin + passed.random % (8 * static_cast<uint64_t>(end - begin));
      passed.whole.memory[bit / 8] ^= std::byte{1} << (bit % 8);
      Tell(Fault::kBitFlip, passed.whole, static_cast<int64_t>(bit / 8));
    }
    const Completion mine = {passed.whole.tag, result};
    if (passed.later == 0) return Deliver(mine);
    Tell(Fault::kLate, passed.whole);
    held_.push_back({mine, passed.later});
  }

  void Deliver(const Completion& completion) {
    ready_.push_back(completion);
    std::erase_if(held_, [this](Held& held) {
      if (--held.later > 0) return false;
      ready_.push_back(held.completion);
      return true;
    });
  }

  // All of it when nothing is left that could overtake it.
  int64_t ReleaseDue() override {
    if (any_passed()) return kNever;
    for (const Held& held : held_) ready_.push_back(held.completion);
    held_.clear();
    return kNever;
  }

  const FaultSpec spec_;
  const FaultSink told_;
  int64_t number_ = 0;  // of the next transfer
};

}  // namespace

std::unique_ptr<IoBackend> CreateFaultyBackend(std::unique_ptr<IoBackend> under,
                                               const FaultSpec& spec, FaultSink told) {
  return std::make_unique<FaultyBackend>(std::move(under), spec, std::move(told));
}

}  // namespace zerohold::io
