// The ring owner's loop:
//  1. submit again what was moved in part or put off, then start new transfers while there is room;
//  2. reap, for as long as nothing else is to be done;
//  3. per completion: done, or again from where it ended, or an error in words;
//  4. cancel what has passed its deadline, and give up what could not be cancelled.
#include "offload/io/mover.h"

#include <absl/strings/str_cat.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "offload/io/in_flight_table.h"
#include "src/base/align.h"
#include "src/base/blocking_queue.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "src/base/threads.h"
#include "src/telemetry/trace.h"

namespace zerohold::io {
namespace {

constexpr double kSecondNs = 1e9;
constexpr double kLongestTimeoutS = 1e9;
constexpr int64_t kIdleNs = 3'600'000'000'000;
// Tries without progress in a row: the first at once, then after pauses that double.
constexpr int kTries = 64;
constexpr int64_t kFirstPauseNs = 20'000;
constexpr int64_t kLongestPauseNs = 20'000'000;

constexpr int IndexOf(Direction direction) { return direction == Direction::kRead ? 0 : 1; }

int64_t PauseNs(int tries) {
  return tries <= 1 ? 0 : std::min(kFirstPauseNs << std::min(tries - 2, 20), kLongestPauseNs);
}

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::StatusCode::kResourceExhausted;
    case EIO:
    case ENODATA:
    case EBADMSG:
    case EILSEQ:
    case EUCLEAN:
      return absl::StatusCode::kDataLoss;
    default:
      return absl::StatusCode::kUnavailable;
  }
}

const char* MendOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kResourceExhausted:
      return "; free room there, or name another folder in nvme_paths";
    case absl::StatusCode::kDataLoss:
      return "; the disk fails: see `dmesg`";
    default:
      return "";
  }
}

}  // namespace

struct Mover::Impl {
  struct Waiting {
    Request request;
    int64_t deadline_ns = 0;
  };
  struct Entry {
    Request request;
    int64_t deadline_ns = 0;
    int64_t moved_bytes = 0;
    int tries = 0;             // without progress, in a row
    bool submitted = false;    // the backend has it
    int64_t submit_at_ns = 0;  // otherwise
    bool cancelled = false;    // the deadline, and what was asked of the backend, is behind it
    bool answered = false;     // `done` was called; its memory is still the backend's
  };

  Impl(std::unique_ptr<IoBackend> io, std::vector<File> to, const Settings& with)
      : backend(std::move(io)), files(std::move(to)), settings(with), queue(with.depth) {
    if (settings.memory == nullptr) settings.memory = std::make_shared<TransferMemory>();
    entries.Reset(settings.depth);
    batch.reserve(settings.depth);
    completions.resize(settings.depth);
  }

  void Run();
  bool NextWaiting();
  void Start(int64_t now_ns);
  void Batch(int number);
  void Complete(const Completion& completion, int64_t now_ns);
  void Retry(int number, const char* why, int64_t now_ns);
  void Answer(int number, const absl::Status& status);
  void Expire(int64_t now_ns);
  int64_t WaitNs(int64_t now_ns);
  void Account(int64_t now_ns);
  std::string Describe(const Request& request) const;
  absl::Status Failed(const Entry& entry, absl::StatusCode code, const std::string& why) const;
  absl::Status TimedOut(const Request& request, int64_t done_bytes, const char* besides) const;

  std::unique_ptr<IoBackend> backend;
  const std::vector<File> files;
  Settings settings;

  base::BlockingQueue<Waiting> queue;  // from any thread to the owner
  std::atomic<bool> closing{false};

  // The owner's.
  std::optional<Waiting> next;  // the first that waits for room
  InFlightTable<Entry> entries;
  std::vector<Transfer> batch;
  std::vector<Completion> completions;
  int answered = 0;                    // entries that are
  std::array<int64_t, 2> in_flight{};  // submitted, by direction
  int64_t accounted_ns = 0;

  // Written by the owner, read by any.
  std::array<std::atomic<int64_t>, 2> moved_bytes{};
  std::array<std::atomic<int64_t>, 2> busy_ns{};
  std::atomic<int64_t> resubmitted{0};

  std::thread owner;
};

void Mover::Impl::Run() {
  accounted_ns = telemetry::NowNs();
  for (;;) {
    // Read first: what was moved before the closing is in the queue.
    const bool last = closing.load();
    Start(telemetry::NowNs());
    if (last && entries.size() == answered && !NextWaiting()) return;
    const int64_t count = backend->Reap(completions, WaitNs(telemetry::NowNs()));
    const int64_t now_ns = telemetry::NowNs();
    Account(now_ns);
    for (int64_t i = 0; i < count; ++i) Complete(completions[i], now_ns);
    Expire(now_ns);
  }
}

bool Mover::Impl::NextWaiting() {
  if (!next) next = queue.TryPop();
  return next.has_value();
}

void Mover::Impl::Start(int64_t now_ns) {
  batch.clear();
  for (int i = 0; i < entries.capacity(); ++i) {
    const Entry* entry = entries.Find(i);
    if (entry != nullptr && !entry->submitted && entry->submit_at_ns <= now_ns) Batch(i);
  }
  while (!entries.full() && NextWaiting()) {
    Batch(entries.Add({.request = next->request, .deadline_ns = next->deadline_ns}));
    next.reset();
  }
  if (batch.empty()) return;
  Account(now_ns);
  for (const Transfer& transfer : batch) ++in_flight[IndexOf(transfer.direction)];
  backend->Submit(batch);
}

// What is left of an entry, from where it ended.
void Mover::Impl::Batch(int number) {
  Entry& entry = *entries.Find(number);
  entry.submitted = true;
  const Request& request = entry.request;
  batch.push_back({.direction = request.direction,
                   .file = request.file,
                   .offset_bytes = request.offset_bytes + entry.moved_bytes,
                   .memory = request.memory + entry.moved_bytes,
                   .bytes = request.bytes - entry.moved_bytes,
                   .tag = static_cast<uint64_t>(number)});
}

void Mover::Impl::Complete(const Completion& completion, int64_t now_ns) {
  const auto number = static_cast<int>(completion.tag);
  Entry& entry = *entries.Find(number);
  const Request& request = entry.request;
  --in_flight[IndexOf(request.direction)];
  entry.submitted = false;
  if (entry.answered) {  // too late
    entries.Take(number);
    --answered;
    return;
  }
  const int64_t left_bytes = request.bytes - entry.moved_bytes;
  if (entry.cancelled && completion.result < left_bytes) {
    return Answer(number, TimedOut(request, entry.moved_bytes, ""));
  }
  if (completion.result < 0) {
    const auto error = static_cast<int>(-completion.result);
    if (error == EAGAIN || error == EINTR) return Retry(number, std::strerror(error), now_ns);
    const absl::StatusCode code = CodeOf(error);
    return Answer(number, Failed(entry, code, absl::StrCat(std::strerror(error), MendOf(code))));
  }
  ZH_CHECK(completion.result <= left_bytes, completion.result, left_bytes);
  if (completion.result == 0 && request.direction == Direction::kRead) {
    const absl::Status status =
        Failed(entry, absl::StatusCode::kDataLoss,
               absl::StrCat("the file ends at ", request.offset_bytes + entry.moved_bytes));
    return Answer(number, status);
  }
  // Direct I/O goes on at whole blocks only: what was moved of the last one is moved again.
  const int64_t whole_bytes = completion.result / base::kPageBytes * base::kPageBytes;
  entry.moved_bytes += whole_bytes;
  moved_bytes[IndexOf(request.direction)].fetch_add(whole_bytes, std::memory_order_relaxed);
  if (whole_bytes == left_bytes) return Answer(number, absl::OkStatus());
  if (whole_bytes > 0) entry.tries = 0;
  Retry(number, "not one block was moved", now_ns);
}

// Requires: the entry is not with the backend.
void Mover::Impl::Retry(int number, const char* why, int64_t now_ns) {
  Entry& entry = *entries.Find(number);
  if (++entry.tries > kTries) {
    return Answer(number, Failed(entry, absl::StatusCode::kUnavailable,
                                 absl::StrCat(why, ", ", kTries, " times in a row")));
  }
  entry.submit_at_ns = now_ns + PauseNs(entry.tries);
  resubmitted.fetch_add(1, std::memory_order_relaxed);
}

// Requires: the entry is not with the backend.
void Mover::Impl::Answer(int number, const absl::Status& status) {
  const Request request = entries.Take(number).request;
  request.done(request.context, status);
}

void Mover::Impl::Expire(int64_t now_ns) {
  for (int i = 0; i < entries.capacity(); ++i) {
    Entry* entry = entries.Find(i);
    if (entry == nullptr || entry->answered || entry->deadline_ns > now_ns) continue;
    if (!entry->submitted) {
      Answer(i, TimedOut(entry->request, entry->moved_bytes, ""));
      continue;
    }
    if (!entry->cancelled) {
      entry->cancelled = true;
      entry->deadline_ns = now_ns + static_cast<int64_t>(kCancelSeconds * kSecondNs);
      backend->Cancel(static_cast<uint64_t>(i));
      continue;
    }
    const absl::Status status = TimedOut(
        entry->request, entry->moved_bytes,
        ", nor could it be cancelled: the disk may still carry it out, so its file and all "
        "staging memory stay as they are, unused, until this process ends");
    settings.memory->GiveUp(status);
    entry->answered = true;
    ++answered;
    entry->request.done(entry->request.context, status);
  }
  // Only when those in flight leave no room: it could have been started otherwise.
  while (entries.full() && NextWaiting() && next->deadline_ns <= now_ns) {
    const Request request = next->request;
    next.reset();
    request.done(request.context, TimedOut(request, 0, ""));
  }
}

// Until something is to be done that no completion and no Wake tells of.
int64_t Mover::Impl::WaitNs(int64_t now_ns) {
  int64_t until_ns = now_ns + kIdleNs;
  if (NextWaiting()) until_ns = std::min(until_ns, next->deadline_ns);
  for (int i = 0; i < entries.capacity(); ++i) {
    const Entry* entry = entries.Find(i);
    if (entry == nullptr || entry->answered) continue;
    until_ns = std::min(until_ns, entry->deadline_ns);
    if (!entry->submitted) until_ns = std::min(until_ns, entry->submit_at_ns);
  }
  return std::max<int64_t>(until_ns - now_ns, 0);
}

void Mover::Impl::Account(int64_t now_ns) {
  for (int i = 0; i < 2; ++i) {
    if (in_flight[i] == 0) continue;
    busy_ns[i].fetch_add(now_ns - accounted_ns, std::memory_order_relaxed);
  }
  accounted_ns = now_ns;
}

std::string Mover::Impl::Describe(const Request& request) const {
  const std::string record =
      request.record < 0 ? "" : absl::StrCat("tier nvme: record ", request.record, ": ");
  return absl::StrCat(record, "nvme_paths: ", files[request.file].path, ": ",
                      request.direction == Direction::kRead ? "read" : "write", " of ",
                      request.bytes, " bytes at ", request.offset_bytes);
}

absl::Status Mover::Impl::Failed(const Entry& entry, absl::StatusCode code,
                                 const std::string& why) const {
  return absl::Status(code, absl::StrCat(Describe(entry.request), ", ", entry.moved_bytes,
                                         " of them moved, by ", backend->name(), ": ", why));
}

absl::Status Mover::Impl::TimedOut(const Request& request, int64_t done_bytes,
                                   const char* besides) const {
  return absl::UnavailableError(
      absl::StrCat(Describe(request), ", ", done_bytes, " of them moved, by ", backend->name(),
                   ": not through within ", settings.timeout_s, " s", besides));
}

absl::StatusOr<std::unique_ptr<Mover>> Mover::Create(std::unique_ptr<IoBackend> backend,
                                                     std::vector<File> files,
                                                     std::span<const std::span<std::byte>> memory,
                                                     const Settings& settings) {
  ZH_CHECK(settings.depth >= 1 && settings.timeout_s > 0.0, settings.depth, settings.timeout_s);
  std::vector<int> descriptors;
  for (const File& file : files) descriptors.push_back(file.descriptor);
  ZH_RETURN_IF_ERROR(backend->Open(descriptors, memory, settings.depth));
  auto impl = std::make_unique<Impl>(std::move(backend), std::move(files), settings);
  ZH_RETURN_IF_ERROR(
      base::StartThreads([&] { impl->owner = std::thread([impl = impl.get()] { impl->Run(); }); }));
  pthread_setname_np(impl->owner.native_handle(), "zh-io");
  return std::unique_ptr<Mover>(new Mover(std::move(impl)));
}

Mover::Mover(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Mover::~Mover() {
  impl_->closing.store(true);
  impl_->backend->Wake();
  impl_->owner.join();
  if (impl_->answered == 0) return;
  // Leaked on purpose, with all that a late transfer touches. The backend's destructor would wait
  // for what does not end.
  using Kept = std::pair<std::shared_ptr<TransferMemory>, std::shared_ptr<const void>>;
  static_cast<void>(new Kept(impl_->settings.memory, impl_->settings.files));
  static_cast<void>(impl_->backend.release());
}

void Mover::Move(const Request& request) {
  const auto address = reinterpret_cast<intptr_t>(request.memory);
  const int64_t all = request.bytes | request.offset_bytes | address;
  ZH_CHECK(request.bytes > 0 && request.offset_bytes >= 0 && all % base::kPageBytes == 0,
           request.bytes, request.offset_bytes, address);
  ZH_CHECK(request.file >= 0 && request.file < static_cast<int>(impl_->files.size()), request.file);
  const double timeout_ns = std::min(impl_->settings.timeout_s, kLongestTimeoutS) * kSecondNs;
  impl_->queue.Push({request, telemetry::NowNs() + static_cast<int64_t>(timeout_ns)});
  impl_->backend->Wake();
}

const char* Mover::backend_name() const { return impl_->backend->name(); }

MoverCounters Mover::counters() const {
  const Impl& impl = *impl_;
  constexpr int kRead = IndexOf(Direction::kRead);
  constexpr int kWrite = IndexOf(Direction::kWrite);
  return {.read_bytes = impl.moved_bytes[kRead].load(std::memory_order_relaxed),
          .written_bytes = impl.moved_bytes[kWrite].load(std::memory_order_relaxed),
          .resubmitted = impl.resubmitted.load(std::memory_order_relaxed),
          .busy_read_ns = impl.busy_ns[kRead].load(std::memory_order_relaxed),
          .busy_write_ns = impl.busy_ns[kWrite].load(std::memory_order_relaxed)};
}

}  // namespace zerohold::io
