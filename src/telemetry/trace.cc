// Spans kept in blocks, written as Chrome trace events (the "Trace Event Format", complete events
// "X"). Times stay those of the steady clock, so that the files of a node's ranks can be laid side
// by side.
#include "src/telemetry/trace.h"

#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

namespace zerohold::telemetry {
namespace {

constexpr int kLanes = static_cast<int>(Lane::kCount);
constexpr std::array<const char*, kLanes> kLaneNames = {"compute", "calls", "comm", "update"};
constexpr size_t kEventsPerBlock = 4096;

struct Event {
  const char* name;
  int64_t index;
  int64_t begin_ns;
  int64_t end_ns;
  Lane lane;
};

// The text between the quotes of a JSON string.
std::string Escaped(const char* text) {
  std::string out;
  for (const char* at = text; *at != '\0'; ++at) {
    if (*at == '"' || *at == '\\') {
      out += '\\';
      out += *at;
    } else if (static_cast<unsigned char>(*at) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned char>(*at));
      out += code;
    } else {
      out += *at;
    }
  }
  return out;
}

// One row of the picture: its spans must nest. Events come in order of their beginnings.
class Row {
 public:
  bool Fits(const Event& event) {
    while (!open_ends_ns_.empty() && open_ends_ns_.back() <= event.begin_ns)
      open_ends_ns_.pop_back();
    return open_ends_ns_.empty() || event.end_ns <= open_ends_ns_.back();
  }
  void Put(const Event& event) { open_ends_ns_.push_back(event.end_ns); }

 private:
  std::vector<int64_t> open_ends_ns_;
};

// Microseconds with the nanoseconds behind the point: a double would lose them after some days of
// uptime.
std::string Microseconds(int64_t ns) {
  char text[40];
  std::snprintf(text, sizeof text, "%lld.%03d", static_cast<long long>(ns / 1000),
                static_cast<int>(ns % 1000));
  return text;
}

// Writes the events of one file, commas between them.
class Writer {
 public:
  Writer(std::FILE* file, int pid) : file_(file), pid_(pid) {}

  // One fact about a row or the process; `value` is the inside of a JSON object.
  void Metadata(int tid, const char* what, const std::string& value) {
    Begin("M", tid);
    std::fprintf(file_, "\"name\":\"%s\",\"args\":{%s}}", what, value.c_str());
  }

  void Span(int tid, const Event& event) {
    const std::string name = Escaped(event.name);
    const std::string begin = Microseconds(event.begin_ns);
    const std::string length = Microseconds(std::max<int64_t>(event.end_ns - event.begin_ns, 0));
    Begin("X", tid);
    std::fprintf(file_, "\"ts\":%s,\"dur\":%s,\"cat\":\"%s\",", begin.c_str(), length.c_str(),
                 name.c_str());
    if (event.index < 0) {
      std::fprintf(file_, "\"name\":\"%s\"}", name.c_str());
    } else {
      const auto index = static_cast<long long>(event.index);
      std::fprintf(file_, "\"name\":\"%s %lld\",\"args\":{\"index\":%lld}}", name.c_str(), index,
                   index);
    }
  }

 private:
  void Begin(const char* phase, int tid) {
    std::fprintf(file_, "%s{\"ph\":\"%s\",\"pid\":%d,\"tid\":%d,", separator_, phase, pid_, tid);
    separator_ = ",\n";
  }

  std::FILE* const file_;
  const int pid_;
  const char* separator_ = "\n";
};

// Spans of one lane that overlap without nesting (several update workers) go to further rows: a
// viewer draws one row as one stack. tid = lane + row * kLanes.
void WriteLane(Writer& writer, int lane, std::vector<Event> events) {
  std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
  });
  std::vector<Row> rows(1);
  std::vector<int> row_of(events.size());
  for (size_t i = 0; i < events.size(); ++i) {
    size_t row = 0;
    while (row < rows.size() && !rows[row].Fits(events[i])) ++row;
    if (row == rows.size()) rows.emplace_back();
    rows[row].Put(events[i]);
    row_of[i] = static_cast<int>(row);
  }
  for (int row = 0; row < static_cast<int>(rows.size()); ++row) {
    const std::string name =
        row == 0 ? kLaneNames[lane] : absl::StrCat(kLaneNames[lane], " ", row + 1);
    const int tid = lane + row * kLanes;
    writer.Metadata(tid, "thread_name", absl::StrCat("\"name\":\"", name, "\""));
    writer.Metadata(tid, "thread_sort_index", absl::StrCat("\"sort_index\":", lane * 1000 + row));
  }
  for (size_t i = 0; i < events.size(); ++i) writer.Span(lane + row_of[i] * kLanes, events[i]);
}

}  // namespace

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

struct Trace::Impl {
  struct Block {
    std::array<Event, kEventsPerBlock> events;
    size_t used = 0;
  };

  Impl(std::string file_path, int rank) : path(std::move(file_path)), pid(rank) { AddBlock(); }
  // Full blocks stay where they are; only this list of pointers ever grows.
  void AddBlock() { blocks.push_back(std::make_unique<Block>()); }
  std::vector<Event> OfLane(Lane lane) const {
    std::vector<Event> out;
    for (const auto& block : blocks) {
      std::copy_if(block->events.begin(), block->events.begin() + block->used,
                   std::back_inserter(out),
                   [lane](const Event& event) { return event.lane == lane; });
    }
    return out;
  }

  const std::string path;
  const int pid;
  std::mutex mutex;
  std::vector<std::unique_ptr<Block>> blocks;  // guarded by mutex; never empty
};

Trace::Trace(std::string path, int pid) {
  if (!path.empty()) impl_ = std::make_unique<Impl>(std::move(path), pid);
}

Trace::~Trace() = default;

absl::Status Trace::CheckPath(const std::string& path) {
  if (path.empty()) return absl::OkStatus();
  const bool there = access(path.c_str(), F_OK) == 0;
  std::FILE* const file = std::fopen(path.c_str(), "a");
  if (file == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("trace_path ", path, " cannot be written (",
                                                   std::strerror(errno),
                                                   "); give a file in a folder that can"));
  }
  std::fclose(file);
  if (!there) std::remove(path.c_str());
  return absl::OkStatus();
}

void Trace::Record(Lane lane, const char* name, int64_t index, int64_t begin_ns, int64_t end_ns) {
  if (impl_ == nullptr) return;
  std::lock_guard lock(impl_->mutex);
  if (impl_->blocks.back()->used == kEventsPerBlock) impl_->AddBlock();
  Impl::Block& block = *impl_->blocks.back();
  block.events[block.used++] = Event{name, index, begin_ns, end_ns, lane};
}

absl::Status Trace::Write() {
  if (impl_ == nullptr) return absl::OkStatus();
  const auto failed = [this] {
    return absl::InternalError(absl::StrCat("trace ", impl_->path, ": ", std::strerror(errno)));
  };
  std::FILE* file = std::fopen(impl_->path.c_str(), "w");
  if (file == nullptr) return failed();
  std::fprintf(file, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
  Writer writer(file, impl_->pid);
  writer.Metadata(0, "process_name", absl::StrCat("\"name\":\"rank ", impl_->pid, "\""));
  for (int lane = 0; lane < kLanes; ++lane) {
    WriteLane(writer, lane, impl_->OfLane(static_cast<Lane>(lane)));
  }
  std::fprintf(file, "\n]}\n");
  // A full disk shows when the buffer is written out, at the latest here.
  const bool written = std::fflush(file) == 0 && std::ferror(file) == 0;
  const int write_error = errno;
  if (std::fclose(file) != 0 || !written) {
    if (!written) errno = write_error;
    return failed();
  }
  return absl::OkStatus();
}

}  // namespace zerohold::telemetry
