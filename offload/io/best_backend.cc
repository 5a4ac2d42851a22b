// io_uring where the kernel allows it, threads elsewhere.
#include <absl/strings/str_cat.h>

#include "offload/io/backends.h"

namespace zerohold::io {
namespace {

// Enough to keep a disk busy; they sleep in the kernel.
constexpr int kThreads = 8;

}  // namespace

std::unique_ptr<IoBackend> CreateBestBackend(const base::NoticeSink& notice) {
  absl::StatusOr<std::unique_ptr<IoBackend>> ring = CreateUringBackend(notice);
  if (ring.ok()) return *std::move(ring);
  notice(absl::StrCat(std::string(ring.status().message()), "; disk transfers go through ",
                      kThreads, " threads"));
  return CreateThreadBackend(kThreads);
}

}  // namespace zerohold::io
