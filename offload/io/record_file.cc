#include "offload/io/record_file.h"

#include <absl/strings/str_cat.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"

namespace zerohold::io {
namespace {

template <typename Call>
auto UntilNotInterrupted(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

std::string Named(const std::string& folder) {
  return absl::StrCat("nvme_paths: \"", folder, "\" ");
}

// Where the file system that holds `folder` is mounted.
std::string MountOf(const std::string& folder) {
  std::error_code ignored;
  std::filesystem::path path = std::filesystem::canonical(folder, ignored);
  struct stat here = {};
  struct stat above = {};
  while (path.has_relative_path() && stat(path.c_str(), &here) == 0 &&
         stat(path.parent_path().c_str(), &above) == 0 && here.st_dev == above.st_dev) {
    path = path.parent_path();
  }
  return path.string();
}

absl::Status NoRoom(const std::string& folder, int64_t bytes) {
  struct statvfs mount = {};
  statvfs(folder.c_str(), &mount);
  const int64_t free_bytes =
      static_cast<int64_t>(mount.f_frsize) * static_cast<int64_t>(mount.f_bavail);
  return absl::ResourceExhaustedError(
      absl::StrCat(Named(folder), "has too little room: asked ", bytes, " bytes, free ", free_bytes,
                   " bytes on the file system mounted at ", MountOf(folder),
                   "; free room there, or give more or other folders"));
}

absl::Status CannotMake(const std::string& folder, int error) {
  const std::string text = absl::StrCat(Named(folder), "takes no file: ", std::strerror(error));
  switch (error) {
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(
          absl::StrCat(text, "; make it writable, or name another folder"));
    case ENOSPC:
    case EDQUOT:
      return absl::ResourceExhaustedError(
          absl::StrCat(text, "; free room there, or name another folder"));
    default:
      return absl::UnavailableError(absl::StrCat(text, "; name another folder"));
  }
}

absl::Status CheckFolder(const std::string& folder) {
  struct stat entry = {};
  if (stat(folder.c_str(), &entry) != 0) {
    if (errno != ENOENT && errno != ENOTDIR) return CannotMake(folder, errno);
    return absl::NotFoundError(
        absl::StrCat(Named(folder), "does not exist; make it, or name another folder"));
  }
  if (!S_ISDIR(entry.st_mode)) {
    return absl::NotFoundError(absl::StrCat(Named(folder), "is not a folder; name a folder"));
  }
  struct statfs system = {};
  if (statfs(folder.c_str(), &system) != 0) return CannotMake(folder, errno);
  const char* in_memory = system.f_type == TMPFS_MAGIC       ? "tmpfs"
                          : system.f_type == RAMFS_MAGIC     ? "ramfs"
                          : system.f_type == HUGETLBFS_MAGIC ? "hugetlbfs"
                                                             : nullptr;
  if (in_memory == nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(Named(folder), "lies in memory (", in_memory,
                   "), so nothing would be spared; name a folder on a disk, or use the host tier"));
}

// Asked before the file is made, so that nobody's disk is filled for an answer of no.
absl::Status CheckRoom(const std::string& folder, int64_t bytes) {
  rlimit limit = {};
  getrlimit(RLIMIT_FSIZE, &limit);
  if (limit.rlim_cur != RLIM_INFINITY && static_cast<uint64_t>(bytes) > limit.rlim_cur) {
    return absl::ResourceExhaustedError(
        absl::StrCat(Named(folder), "may not hold so large a file: asked ", bytes,
                     " bytes, the limit of this process is ", static_cast<uint64_t>(limit.rlim_cur),
                     "; raise `ulimit -f`, or give more folders"));
  }
  struct statvfs mount = {};
  if (statvfs(folder.c_str(), &mount) != 0) return CannotMake(folder, errno);
  const int64_t blocks =
      base::CeilDiv(bytes, std::max<int64_t>(static_cast<int64_t>(mount.f_frsize), 1));
  return blocks > static_cast<int64_t>(mount.f_bavail) ? NoRoom(folder, bytes) : absl::OkStatus();
}

absl::StatusOr<int> OpenNameless(const std::string& folder) {
  const int nameless = UntilNotInterrupted(
      [&] { return open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); });
  if (nameless >= 0) return nameless;
  // EISDIR: the kernel, EOPNOTSUPP: the file system does not know O_TMPFILE.
  if (errno != EISDIR && errno != EOPNOTSUPP && errno != EINVAL) return CannotMake(folder, errno);
  std::string name = folder + "/zerohold.XXXXXX";
  const int named = UntilNotInterrupted([&] { return mkostemp(name.data(), O_CLOEXEC); });
  if (named < 0) return CannotMake(folder, errno);
  unlink(name.c_str());
  return named;
}

absl::Status Reserve(int descriptor, int64_t bytes, const std::string& folder,
                     const base::NoticeSink& notice) {
  if (bytes == 0) return absl::OkStatus();
  if (UntilNotInterrupted([&] { return fallocate(descriptor, 0, 0, bytes); }) == 0) {
    return absl::OkStatus();
  }
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) return NoRoom(folder, bytes);
  if (errno != EOPNOTSUPP && errno != ENOSYS) return CannotMake(folder, errno);
  if (ftruncate(descriptor, bytes) != 0) return CannotMake(folder, errno);
  notice(absl::StrCat(Named(folder),
                      "lies on a file system that reserves no room: if the disk fills up, a later "
                      "step fails"));
  return absl::OkStatus();
}

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Direct I/O, where it works: asked for, and tried with one block, since some take the flag and
// then refuse the transfer.
absl::Status MakeDirect(int descriptor, int64_t bytes, const std::string& folder,
                        const base::NoticeSink& notice) {
  const int flags = fcntl(descriptor, F_GETFL);
  int error = fcntl(descriptor, F_SETFL, flags | O_DIRECT) == 0 ? 0 : errno;
  if (error == 0 && bytes >= base::kPageBytes) {
    const std::unique_ptr<void, Free> block(std::aligned_alloc(base::kPageBytes, base::kPageBytes));
    ZH_CHECK(block != nullptr);
    std::memset(block.get(), 0, base::kPageBytes);
    const ssize_t written =
        UntilNotInterrupted([&] { return pwrite(descriptor, block.get(), base::kPageBytes, 0); });
    error = written == base::kPageBytes ? 0 : written < 0 ? errno : EIO;
  }
  if (error == 0) return absl::OkStatus();
  if (error != EINVAL && error != EOPNOTSUPP) return CannotMake(folder, error);
  fcntl(descriptor, F_SETFL, flags);
  notice(
      absl::StrCat(Named(folder), "refuses direct I/O (", std::strerror(error),
                   "): records go through the kernel's page cache, slower and with more memory"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<RecordFile> RecordFile::Create(const std::string& folder, int64_t bytes,
                                              const base::NoticeSink& notice) {
  ZH_CHECK(bytes >= 0, bytes);
  ZH_RETURN_IF_ERROR(CheckFolder(folder));
  ZH_RETURN_IF_ERROR(CheckRoom(folder, bytes));
  RecordFile file;  // from here on its destructor closes
  file.folder_ = folder;
  file.bytes_ = bytes;
  ZH_ASSIGN_OR_RETURN(file.descriptor_, OpenNameless(folder));
  ZH_RETURN_IF_ERROR(Reserve(file.descriptor_, bytes, folder, notice));
  ZH_RETURN_IF_ERROR(MakeDirect(file.descriptor_, bytes, folder, notice));
  return file;
}

RecordFile::RecordFile(RecordFile&& other) noexcept { *this = std::move(other); }

RecordFile& RecordFile::operator=(RecordFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(bytes_, other.bytes_);
  std::swap(folder_, other.folder_);
  return *this;
}

RecordFile::~RecordFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace zerohold::io
