// A file without a name in a folder of the user's: nothing is left of it when the process ends,
// however it ends, and two jobs share a folder.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "src/base/notice.h"

namespace zerohold::io {

class RecordFile {
 public:
  // Preallocates `bytes` in `folder`, opened for direct I/O; where the file system refuses that,
  // `notice` says so and pages go through the kernel's cache. Made by O_TMPFILE, else under a 0600
  // name that is removed at once.
  // Errors, naming setting (nvme_paths), folder and mend: NotFound (no such folder),
  // PermissionDenied, FailedPrecondition (it is in memory: tmpfs, ramfs), ResourceExhausted with
  // asked and free bytes and the mount.
  static absl::StatusOr<RecordFile> Create(const std::string& folder, int64_t bytes,
                                           const base::NoticeSink& notice);
  RecordFile(RecordFile&& other) noexcept;
  RecordFile& operator=(RecordFile&& other) noexcept;
  ~RecordFile();

  int descriptor() const { return descriptor_; }
  int64_t bytes() const { return bytes_; }
  const std::string& folder() const { return folder_; }

 private:
  RecordFile() = default;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
  std::string folder_;
};

}  // namespace zerohold::io
