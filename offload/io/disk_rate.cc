// Rounds of a few large transfers at a time, each way until the bytes or half the time are used up.
#include "offload/io/disk_rate.h"

#include <algorithm>
#include <cstdlib>
#include <future>
#include <utility>
#include <vector>

#include "offload/io/mover.h"
#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/telemetry/trace.h"

namespace zerohold::io {
namespace {

constexpr int kAtOnce = 4;
constexpr int64_t kMostPieceBytes = int64_t{1} << 20;

class Probe {
 public:
  Probe(Mover& mover, std::byte* memory, int64_t piece_bytes)
      : mover_(mover), memory_(memory), piece_bytes_(piece_bytes) {}

  // Seconds for each byte, of at most `rounds` rounds; sets that to how many there were.
  absl::StatusOr<double> Run(Direction direction, double seconds, int64_t* rounds) {
    const int64_t begin_ns = telemetry::NowNs();
    const auto seconds_so_far = [&] {
      return static_cast<double>(telemetry::NowNs() - begin_ns) * 1e-9;
    };
    int64_t done = 0;
    do {
      ZH_RETURN_IF_ERROR(Round(direction, done++));
    } while (done < *rounds && seconds_so_far() < seconds);
    *rounds = done;
    return seconds_so_far() / static_cast<double>(done * kAtOnce * piece_bytes_);
  }

 private:
  absl::Status Round(Direction direction, int64_t number) {
    std::vector<std::promise<absl::Status>> moved(kAtOnce);
    for (int i = 0; i < kAtOnce; ++i) {
      mover_.Move({.direction = direction,
                   .offset_bytes = (number * kAtOnce + i) * piece_bytes_,
                   .memory = memory_ + i * piece_bytes_,
                   .bytes = piece_bytes_,
                   .done =
                       [](void* context, absl::Status status) {
                         static_cast<std::promise<absl::Status>*>(context)->set_value(
                             std::move(status));
                       },
                   .context = &moved[i]});
    }
    absl::Status status;
    for (auto& one : moved) status.Update(one.get_future().get());
    return status;
  }

  Mover& mover_;
  std::byte* const memory_;
  const int64_t piece_bytes_;
};

}  // namespace

absl::StatusOr<double> MeasureRate(std::unique_ptr<IoBackend> backend,
                                   std::shared_ptr<const RecordFile> file, const RateProbe& probe) {
  const int64_t bytes = std::min(probe.bytes, file->bytes());
  const int64_t piece_bytes =
      std::min(kMostPieceBytes, bytes / kAtOnce / base::kPageBytes * base::kPageBytes);
  ZH_CHECK(piece_bytes > 0, bytes);
  const auto memory_bytes = static_cast<size_t>(kAtOnce * piece_bytes);
  const std::shared_ptr<std::byte> memory(
      static_cast<std::byte*>(std::aligned_alloc(base::kPageBytes, memory_bytes)), &std::free);
  // Not zeros, which a disk may treat better.
  for (size_t i = 0; i < memory_bytes; ++i) {
    memory.get()[i] = static_cast<std::byte>(i * 0x9e3779b1u >> 24);
  }
  ZH_ASSIGN_OR_RETURN(const std::unique_ptr<Mover> mover,
                      Mover::Create(std::move(backend), {{file->descriptor(), file->folder()}}, {},
                                    {.depth = kAtOnce,
                                     .timeout_s = probe.timeout_s,
                                     .memory = std::make_shared<TransferMemory>(memory),
                                     .files = file}));
  Probe disk(*mover, memory.get(), piece_bytes);
  int64_t rounds = bytes / (kAtOnce * piece_bytes);
  ZH_ASSIGN_OR_RETURN(const double write_s,
                      disk.Run(Direction::kWrite, probe.seconds / 2, &rounds));
  ZH_ASSIGN_OR_RETURN(const double read_s, disk.Run(Direction::kRead, probe.seconds / 2, &rounds));
  return 1.0 / (write_s + read_s);
}

}  // namespace zerohold::io
