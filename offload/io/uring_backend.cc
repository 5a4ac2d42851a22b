// One ring, entered once for a batch and once for a wait. Wake is an eventfd that the ring polls.
//
// What a container's rules or old kernels refuse comes out where it can still be answered: the ring
// itself at creation (then threads take over), registered files and memory at Open (then transfers
// name them each time, which costs the kernel a look-up and the pinning of the pages).
#include <absl/strings/str_cat.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "offload/io/backends.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/base/units.h"
#include "src/telemetry/trace.h"

namespace zerohold::io {
namespace {

constexpr int kEntries = 256;
constexpr int kMaxDepth = kEntries - 1;            // one entry is the wake-up's
constexpr int64_t kPieceBytes = int64_t{1} << 30;  // the kernel's limit of one registered buffer
constexpr uint64_t kWakeTag = ~uint64_t{0};
constexpr uint64_t kCancelTag = kWakeTag - 1;
constexpr int64_t kSecondNs = 1'000'000'000;
// A kernel that cannot take a submission now is asked again after this.
constexpr int64_t kBusyNs = 1'000'000;

std::string LockedMemoryLimit() {
  rlimit limit = {};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  return limit.rlim_cur == RLIM_INFINITY
             ? "no limit of locked memory"
             : absl::StrCat("limit of locked memory ",
                            base::FormatBytes(static_cast<int64_t>(limit.rlim_cur)),
                            ", `ulimit -l`");
}

absl::Status Refused(const char* what, int error) {
  return absl::UnavailableError(
      absl::StrCat("io_uring: ", what, ": ", std::strerror(error), " (", LockedMemoryLimit(), ")"));
}

class UringBackend final : public IoBackend {
 public:
  explicit UringBackend(const base::NoticeSink& notice) : notice_(notice) {}

  ~UringBackend() override {
    if (!ring_made_) return;
    // The kernel goes on with what it has, ring or not: memory is its own until the completion.
    Completion completions[16];
    while (in_flight_ > 0) Reap(completions, kSecondNs);
    io_uring_queue_exit(&ring_);
    if (event_ >= 0) close(event_);
  }

  absl::Status Create() {
    int error = -io_uring_queue_init(kEntries, &ring_, 0);
    if (error != 0) return Refused("io_uring_setup", error);
    ring_made_ = true;
    // Waits with a timeout of their own; with it (Linux 5.11) comes every operation used here.
    if ((ring_.features & IORING_FEAT_EXT_ARG) == 0) return Refused("an old kernel", ENOSYS);
    event_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (event_ < 0) return Refused("eventfd", errno);
    return TryRing();
  }

  const char* name() const override { return "io_uring"; }

  absl::Status Open(std::span<const int> descriptors, std::span<const std::span<std::byte>> memory,
                    int depth) override {
    if (depth > kMaxDepth) {
      return absl::InvalidArgumentError(
          absl::StrCat("io_uring: depth ", depth, ", at most ", kMaxDepth));
    }
    descriptors_.assign(descriptors.begin(), descriptors.end());
    RegisterFiles();
    RegisterMemory(memory);
    return absl::OkStatus();
  }

  void Submit(std::span<const Transfer> transfers) override {
    for (const Transfer& transfer : transfers) Prepare(transfer);
    in_flight_ += static_cast<int64_t>(transfers.size());
    io_uring_submit(&ring_);  // what the kernel cannot take now goes with the next Reap
  }

  // Ends what waits in the kernel's queues; not what a device has.
  void Cancel(uint64_t tag) override {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) return;
    io_uring_prep_cancel64(entry, tag, 0);
    io_uring_sqe_set_data64(entry, kCancelTag);
    io_uring_submit(&ring_);
  }

  int64_t Reap(std::span<Completion> completions, int64_t timeout_ns) override {
    const int64_t until_ns = telemetry::NowNs() + timeout_ns;
    bool woken = false;
    for (;;) {
      if (!wake_armed_) ArmWake();
      if (io_uring_cq_ready(&ring_) == 0 || io_uring_sq_ready(&ring_) > 0) Wait(timeout_ns);
      const int64_t count = Take(completions, &woken);
      timeout_ns = until_ns - telemetry::NowNs();
      // What a Cancel itself completes with is nobody's.
      if (count > 0 || woken || timeout_ns <= 0) return count;
    }
  }

  void Wake() override {
    const uint64_t one = 1;
    // It can only fail when the counter is full, which wakes as well.
    [[maybe_unused]] const ssize_t written = write(event_, &one, sizeof one);
  }

 private:
  // Memory registered with the kernel, in the order of addresses; its place is its number there.
  struct Piece {
    std::byte* begin;
    std::byte* end;
  };

  // Completions that are there.
  int64_t Take(std::span<Completion> completions, bool* woken) {
    int64_t count = 0;
    unsigned seen = 0;
    unsigned head = 0;
    io_uring_cqe* entry = nullptr;
    io_uring_for_each_cqe(&ring_, head, entry) {
      if (entry->user_data == kWakeTag) {
        ClearWake();
        *woken = true;
      } else if (entry->user_data != kCancelTag) {
        if (count == static_cast<int64_t>(completions.size())) break;
        completions[count++] = {entry->user_data, entry->res};
      }
      ++seen;
    }
    io_uring_cq_advance(&ring_, seen);
    in_flight_ -= count;
    return count;
  }

  // Rules may let a process make a ring and not use it.
  absl::Status TryRing() {
    io_uring_prep_nop(io_uring_get_sqe(&ring_));
    const int submitted = io_uring_submit(&ring_);
    if (submitted < 0) return Refused("io_uring_enter", -submitted);
    io_uring_cqe* entry = nullptr;
    const int error = -io_uring_wait_cqe(&ring_, &entry);
    if (error != 0) return Refused("io_uring_enter", error);
    io_uring_cqe_seen(&ring_, entry);
    return absl::OkStatus();
  }

  void RegisterFiles() {
    const int error = -io_uring_register_files(&ring_, descriptors_.data(), descriptors_.size());
    files_registered_ = error == 0;
    if (error == 0 || descriptors_.empty()) return;
    notice_(absl::StrCat("io_uring cannot register files (", std::strerror(error),
                         "): transfers go on without, a little slower"));
  }

  void RegisterMemory(std::span<const std::span<std::byte>> memory) {
    std::vector<iovec> vectors;
    int64_t sum_bytes = 0;
    for (std::span<std::byte> span : memory) {
      sum_bytes += static_cast<int64_t>(span.size());
      while (!span.empty()) {
        const size_t bytes = std::min<size_t>(span.size(), kPieceBytes);
        vectors.push_back({span.data(), bytes});
        span = span.subspan(bytes);
      }
    }
    if (vectors.empty()) return;
    std::ranges::sort(vectors, std::less<>{}, &iovec::iov_base);
    const int error = -io_uring_register_buffers(&ring_, vectors.data(), vectors.size());
    if (error != 0) {
      notice_(absl::StrCat("io_uring cannot register ", base::FormatBytes(sum_bytes),
                           " of staging memory (", std::strerror(error), "; ", LockedMemoryLimit(),
                           "): transfers go on with memory that is not registered"));
      return;
    }
    for (const iovec& vector : vectors) {
      auto* begin = static_cast<std::byte*>(vector.iov_base);
      pieces_.push_back({begin, begin + vector.iov_len});
    }
  }

  // The registered piece that `memory` lies in; -1 when none.
  int PieceOf(const std::byte* memory) const {
    const auto after = std::ranges::upper_bound(pieces_, memory, std::less<>{}, &Piece::begin);
    if (after == pieces_.begin() || memory >= std::prev(after)->end) return -1;
    return static_cast<int>(after - pieces_.begin()) - 1;
  }

  void Prepare(const Transfer& transfer) {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    ZH_CHECK(entry != nullptr, in_flight_);  // more in flight than Open was told
    const int file = files_registered_ ? transfer.file : descriptors_[transfer.file];
    const bool reads = transfer.direction == Direction::kRead;
    const int piece = PieceOf(transfer.memory);
    // What crosses a border of pieces is a short transfer; the rest comes again.
    const int64_t most =
        piece < 0 ? kPieceBytes : static_cast<int64_t>(pieces_[piece].end - transfer.memory);
    const auto bytes = static_cast<unsigned>(std::min(transfer.bytes, most));
    const auto offset = static_cast<uint64_t>(transfer.offset_bytes);
    if (piece < 0) {
      (reads ? io_uring_prep_read(entry, file, transfer.memory, bytes, offset)
             : io_uring_prep_write(entry, file, transfer.memory, bytes, offset));
    } else {
      (reads ? io_uring_prep_read_fixed(entry, file, transfer.memory, bytes, offset, piece)
             : io_uring_prep_write_fixed(entry, file, transfer.memory, bytes, offset, piece));
    }
    if (files_registered_) entry->flags |= IOSQE_FIXED_FILE;
    io_uring_sqe_set_data64(entry, transfer.tag);
  }

  // The poll goes to the kernel with the next submission or wait.
  void ArmWake() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) return;  // the next Reap finds room
    io_uring_prep_poll_add(entry, event_, POLLIN);
    io_uring_sqe_set_data64(entry, kWakeTag);
    wake_armed_ = true;
  }

  void ClearWake() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(event_, &count, sizeof count);
    wake_armed_ = false;
  }

  void Wait(int64_t timeout_ns) {
    __kernel_timespec timeout = {timeout_ns / kSecondNs, timeout_ns % kSecondNs};
    io_uring_cqe* entry = nullptr;
    const int result = io_uring_submit_and_wait_timeout(&ring_, &entry, 1, &timeout, nullptr);
    if (result >= 0 || result == -ETIME || result == -EINTR) return;
    if (io_uring_cq_ready(&ring_) > 0) return;
    // Out of memory for requests, most likely; it must not become a loop without sleep.
    const timespec pause = {0, static_cast<long>(std::min(timeout_ns, kBusyNs))};
    nanosleep(&pause, nullptr);
  }

  base::NoticeSink notice_;
  io_uring ring_ = {};
  bool ring_made_ = false;
  int event_ = -1;
  bool wake_armed_ = false;
  std::vector<int> descriptors_;
  bool files_registered_ = false;
  std::vector<Piece> pieces_;
  int64_t in_flight_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<IoBackend>> CreateUringBackend(const base::NoticeSink& notice) {
  auto backend = std::make_unique<UringBackend>(notice);
  ZH_RETURN_IF_ERROR(backend->Create());
  return backend;
}

}  // namespace zerohold::io
