// What attaching and detaching a unit costs, against a bare mremap of private memory there and
// back.
//
// bench-attach [--mib 1024] [--rounds 31] [--segment] [--json]. Takes --mib of memory twice. Units
// of 2, 64, 256 and 1024 MiB, each attached and detached one after the other; both alternate in one
// process; medians, per GiB moved. The limit of 500 us is promised for units of 256 MiB or more;
// small ones pay for their system calls.
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/report.h"
#include "src/base/align.h"
#include "src/memory/address_arena.h"
#include "src/memory/frame_pool.h"
#include "src/memory/host_buffer.h"
#include "src/memory/segment.h"
#include "zerohold/status.h"

namespace zerohold::bench {
namespace {

using memory::AddressArena;
using memory::FramePool;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kLimitedMib = 256;
constexpr double kLimitUs = 500.0;

[[noreturn]] void Fail(const std::string& what) {
  std::cerr << what << "\n";
  std::exit(1);
}

template <typename T>
T Require(StatusOr<T> value) {
  if (!value.ok()) Fail(value.status().ToString());
  return std::move(value).value();
}

// Calls `move` for every unit of `bytes`, there and back; seconds.
template <typename Move>
double TimeMoves(int64_t bytes, int64_t unit_bytes, const Move& move) {
  const double begin = NowSeconds();
  for (int64_t at = 0; at + unit_bytes <= bytes; at += unit_bytes) {
    for (const bool there : {true, false}) {
      if (!move(at, there)) Fail("a move failed at byte " + std::to_string(at));
    }
  }
  return NowSeconds() - begin;
}

class Bench {
 public:
  Bench(int64_t bytes, bool in_segment)
      : bytes_(bytes),
        arena_(Require(AddressArena::Reserve(bytes, kKind, &ledger_))),
        private_(Require(memory::HostBuffer::Allocate(bytes, kKind, &ledger_))),
        reserved_(Require(AddressArena::Reserve(bytes, kKind, &ledger_))) {
    if (in_segment) {
      segment_.emplace(Require(memory::Segment::Create(bytes)));
      segment_->Unlink();
    }
    pool_ = Require(in_segment ? FramePool::CreateInSegment(*segment_, {0, bytes}, kKind, &ledger_)
                               : FramePool::CreatePrivate(bytes, kKind, &ledger_));
    if (!pool_->moves()) std::cerr << "this kernel maps every attach anew\n";
  }

  // Both per GiB, microseconds.
  Line Measure(int64_t unit_bytes, int rounds) {
    const int64_t moved_bytes = bytes_ / unit_bytes * unit_bytes;
    const double us_per_gib = 1e6 / (static_cast<double>(moved_bytes) / (1024.0 * kMiB));
    std::vector<double> attach, bare;
    for (int round = -1; round < rounds; ++round) {  // one to warm up
      const double times[] = {TimeAttach(unit_bytes), TimeBare(unit_bytes)};
      if (round < 0) continue;
      attach.push_back(times[0] * us_per_gib);
      bare.push_back(times[1] * us_per_gib);
    }
    return {"unit=" + std::to_string(unit_bytes / kMiB) + "MiB", Median(attach), Median(bare)};
  }

 private:
  static constexpr MemoryKind kKind = MemoryKind::kStaging;

  double TimeAttach(int64_t unit_bytes) {
    return TimeMoves(bytes_, unit_bytes, [&](int64_t at, bool there) {
      char* const address = arena_.base() + at;
      return (there ? pool_->Attach({at, unit_bytes}, address)
                    : pool_->Detach({at, unit_bytes}, address))
          .ok();
    });
  }

  double TimeBare(int64_t unit_bytes) {
    char* const home = static_cast<char*>(private_.data());
    return TimeMoves(bytes_, unit_bytes, [&](int64_t at, bool there) {
      char* const from = (there ? home : reserved_.base()) + at;
      char* const to = (there ? reserved_.base() : home) + at;
      return mremap(from, unit_bytes, unit_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to;
    });
  }

  const int64_t bytes_;
  memory::Ledger ledger_;
  AddressArena arena_;
  memory::HostBuffer private_;
  AddressArena reserved_;
  std::optional<memory::Segment> segment_;
  std::unique_ptr<FramePool> pool_;
};

int Main(int argc, char** argv) {
  int64_t mib = 1024;
  int rounds = 31;
  bool in_segment = false;
  bool json = false;
  CLI::App app("Attach and detach of units beside a bare mremap");
  app.add_option("--mib", mib, "of frames, and of the memory beside them")
      ->check(CLI::Range(2, 1 << 20))
      ->capture_default_str();
  app.add_option("--rounds", rounds)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_flag("--segment", in_segment,
               "frames in shared memory of the node, not in private memory");
  app.add_flag("--json", json);
  CLI11_PARSE(app, argc, argv);

  const int64_t bytes = mib / 2 * 2 * kMiB;
  Bench bench(bytes, in_segment);
  std::vector<Line> limited;
  const Report report("attach", "us/GiB", json);
  for (const int64_t unit_mib : {2, 64, 256, 1024}) {
    if (unit_mib * kMiB > bytes) continue;
    const Line line = bench.Measure(unit_mib * kMiB, rounds);
    report.Add(line);
    if (unit_mib >= kLimitedMib) limited.push_back({line.name, line.value, kLimitUs});
  }
  if (limited.empty()) return 0;
  const Report limits("attach", "us/GiB", json, Bound::kLimit);
  for (const Line& line : limited) limits.Add(line);
  return 0;
}

}  // namespace
}  // namespace zerohold::bench

int main(int argc, char** argv) { return zerohold::bench::Main(argc, argv); }
