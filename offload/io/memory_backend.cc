// Every transfer is done when Submit returns: what a test wants, and what shows that nobody above
// counts on the time in between.
#include <algorithm>
#include <cstring>
#include <vector>

#include "offload/io/backends.h"
#include "offload/io/completion_queue.h"

namespace zerohold::io {
namespace {

class MemoryBackend final : public IoBackend {
 public:
  const char* name() const override { return "memory"; }

  absl::Status Open(std::span<const int> descriptors, std::span<const std::span<std::byte>>,
                    int depth) override {
    files_.resize(descriptors.size());
    done_.Reserve(depth);
    return absl::OkStatus();
  }

  void Submit(std::span<const Transfer> transfers) override {
    for (const Transfer& transfer : transfers) {
      std::vector<std::byte>& file = files_[transfer.file];
      const bool reads = transfer.direction == Direction::kRead;
      done_.Push({transfer.tag, reads ? Read(file, transfer) : Write(file, transfer)});
    }
  }

  int64_t Reap(std::span<Completion> completions, int64_t timeout_ns) override {
    return done_.Reap(completions, timeout_ns);
  }

  void Wake() override { done_.Wake(); }

 private:
  static int64_t Read(const std::vector<std::byte>& file, const Transfer& transfer) {
    const int64_t left = static_cast<int64_t>(file.size()) - transfer.offset_bytes;
    const int64_t moved = std::clamp<int64_t>(left, 0, transfer.bytes);
    if (moved > 0) std::memcpy(transfer.memory, file.data() + transfer.offset_bytes, moved);
    return moved;
  }

  static int64_t Write(std::vector<std::byte>& file, const Transfer& transfer) {
    const auto end = static_cast<size_t>(transfer.offset_bytes + transfer.bytes);
    if (file.size() < end) file.resize(end);
    std::memcpy(file.data() + transfer.offset_bytes, transfer.memory, transfer.bytes);
    return transfer.bytes;
  }

  std::vector<std::vector<std::byte>> files_;
  CompletionQueue done_;
};

}  // namespace

std::unique_ptr<IoBackend> CreateMemoryBackend() { return std::make_unique<MemoryBackend>(); }

}  // namespace zerohold::io
