#include "src/memory/fault_reporter.h"

#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <string_view>
#include <thread>

namespace zerohold::memory {
namespace {

// A map may end while the handler reads it in another thread: the reader raises `readers` before it
// looks for the map, and the map's end waits until they are gone. In a forked child a count may
// stay raised for ever (its reader was a thread of the parent); such a slot is never taken again.
struct Slot {
  std::atomic<const FaultMap*> map{nullptr};
  std::atomic<int> readers{0};
};
static_assert(std::atomic<const FaultMap*>::is_always_lock_free);
static_assert(std::atomic<int>::is_always_lock_free);

constinit std::array<Slot, FaultMap::kMaxMaps> slots;
constinit struct sigaction previous = {};  // written before the handler is installed

// Appends what fits.
class Line {
 public:
  explicit Line(std::span<char> space) : space_(space) {}
  Line& operator<<(std::string_view text) {
    const size_t n = std::min(text.size(), space_.size() - used_);
    std::memcpy(space_.data() + used_, text.data(), n);
    used_ += n;
    return *this;
  }
  Line& operator<<(pid_t number) {
    std::array<char, 16> digits;
    const auto end = std::to_chars(digits.begin(), digits.end(), number).ptr;
    return *this << std::string_view(digits.begin(), end);
  }
  int64_t Finish() {
    if (used_ == space_.size()) --used_;
    *this << "\n";
    return static_cast<int64_t>(used_);
  }

 private:
  std::span<char> space_;
  size_t used_ = 0;
};

void Report(const char* address) {
  std::array<char, 1024> line;
  int64_t bytes = 0;
  for (Slot& slot : slots) {
    if (slot.map.load() == nullptr) continue;
    slot.readers.fetch_add(1);
    const FaultMap* const map = slot.map.load();
    if (map != nullptr) bytes = map->Explain(address, line);
    slot.readers.fetch_sub(1);
    if (bytes > 0) break;
  }
  // No reader waits for a slow stderr.
  if (bytes > 0 && write(STDERR_FILENO, line.data(), bytes) < 0) return;
}

// As if this handler had never been. A default action is brought about by the instruction, which
// faults again, so that the core shows it; one that nothing will repeat is raised again.
void PassOn(int signal, siginfo_t* info, void* context) {
  const bool by_instruction = info->si_code > 0;
  const bool calls = previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN;
  if (previous.sa_handler == SIG_IGN && !by_instruction) return;
  if (!calls || (previous.sa_flags & SA_RESETHAND) != 0) {
    struct sigaction none = {};
    none.sa_handler = SIG_DFL;
    sigaction(signal, &none, nullptr);
  }
  if (!calls) {
    if (!by_instruction) raise(signal);
  } else if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else {
    previous.sa_handler(signal);
  }
}

void OnFault(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  // Sent by a process (si_code <= 0), it has no address.
  if (info->si_code > 0) Report(static_cast<const char*>(info->si_addr));
  errno = error;
  PassOn(signal, info, context);
}

// 0 or an errno.
int Install() {
  if (sigaction(SIGSEGV, nullptr, &previous) != 0) return errno;
  struct sigaction action = {};
  action.sa_sigaction = OnFault;
  action.sa_mask = previous.sa_mask;
  // The handler that was there may need another stack, and may leave by a jump.
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | (previous.sa_flags & (SA_NODEFER | SA_RESTART));
  return sigaction(SIGSEGV, &action, nullptr) == 0 ? 0 : errno;
}

}  // namespace

absl::Status InstallFaultReporter() {
  static const int error = Install();
  if (error == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("cannot handle SIGSEGV: ", std::strerror(error)));
}

FaultMap::FaultMap(std::vector<Entry> entries)
    : entries_(std::move(entries)), pid_(getpid()), slot_(-1) {
  std::ranges::sort(entries_, {}, &Entry::begin);
  for (int i = 0; i < kMaxMaps && slot_ < 0; ++i) {
    const FaultMap* nobody = nullptr;
    if (slots[i].readers.load() == 0 && slots[i].map.compare_exchange_strong(nobody, this)) {
      slot_ = i;
    }
  }
}

FaultMap::~FaultMap() {
  if (slot_ < 0) return;
  slots[slot_].map.store(nullptr);
  // Readers seen by a forked child may be threads that it has not got.
  while (pid_ == getpid() && slots[slot_].readers.load() != 0) std::this_thread::yield();
}

int64_t FaultMap::Explain(const char* address, std::span<char> line) const {
  const auto after =
      std::upper_bound(entries_.begin(), entries_.end(), address,
                       [](const char* wanted, const Entry& entry) { return wanted < entry.begin; });
  if (after == entries_.begin()) return 0;
  const Entry& entry = *(after - 1);
  if (address - entry.begin >= entry.bytes) return 0;
  Line text(line);
  text << "zerohold: parameter " << entry.parameter << " of unit " << entry.unit;
  if (pid_ == getpid()) {
    text << " " << entry.why;
  } else {
    text << " belongs to process " << pid_
         << ", which forked this one; use it there, or copy it before the fork";
  }
  return text.Finish();
}

}  // namespace zerohold::memory
