// Boost.Interprocess opens the file, and makes and removes names; a file without one is the
// system's own call. The space is reserved through Boost's descriptor.
#include "src/memory/segment.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <boost/interprocess/exceptions.hpp>
#include <boost/interprocess/file_mapping.hpp>
#include <boost/interprocess/permissions.hpp>
#include <boost/interprocess/shared_memory_object.hpp>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <utility>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/hash.h"
#include "src/base/status_macros.h"
#include "src/memory/available.h"
#include "src/memory/memory_file.h"

namespace zerohold::memory {
namespace {

namespace bip = boost::interprocess;

constexpr char kMount[] = "/dev/shm";  // where the C library's shm_open puts its files
constexpr int kNameTries = 16;

std::string FreshName() {
  std::random_device random;
  const uint64_t number = uint64_t{random()} << 32 | random();
  return absl::StrFormat("zerohold.%d.%016x", getpid(), number);
}

absl::Status OutOfSpace(int64_t bytes, int error) {
  if (error == EFBIG) {
    return absl::ResourceExhaustedError(absl::StrCat("shared memory: asked ", bytes,
                                                     " bytes, more than this process may give a "
                                                     "file; raise `ulimit -f`"));
  }
  struct statvfs mount = {};
  statvfs(kMount, &mount);
  const auto unit = static_cast<int64_t>(mount.f_frsize);
  const int64_t free_bytes = unit * static_cast<int64_t>(mount.f_bavail);
  const int64_t wanted_bytes = unit * static_cast<int64_t>(mount.f_blocks - mount.f_bfree) + bytes;
  return absl::ResourceExhaustedError(absl::StrCat(
      "shared memory: asked ", bytes, " bytes, free ", free_bytes, " bytes on ", kMount, " (",
      std::strerror(error), "); enlarge it with `mount -o remount,size=", wanted_bytes, " ", kMount,
      "`, or in a container with --shm-size=", wanted_bytes));
}

}  // namespace

uint64_t SharedMemoryMount() {
  // A mount's device number is unique within a kernel; the boot id tells kernels apart.
  struct stat mount = {};
  stat(kMount, &mount);
  std::string identity;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity;
  absl::StrAppend(&identity, "/", static_cast<uint64_t>(mount.st_dev));
  return base::Hash(identity);
}

struct Segment::Impl {
  bip::file_mapping file;
  std::string name;  // in the mount
  pid_t namer = 0;   // the process that takes the name away; 0 when done, or not ours to do
};

absl::StatusOr<Segment> Segment::Create(int64_t bytes) {
  ZH_CHECK(bytes >= 0, bytes);
  absl::StatusOr<Segment> segment = absl::UnavailableError("");
  const int nameless = open(kMount, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (nameless >= 0) {
    segment = OpenPath(absl::StrCat("/proc/self/fd/", nameless));
    close(nameless);
  }
  if (!segment.ok()) {  // a kernel that makes no such files: the name is gone before anybody looks
    segment = CreateNamed();
    if (!segment.ok()) return segment;
    segment->Unlink();
  }
  ZH_RETURN_IF_ERROR(segment->Reserve(bytes));
  return segment;
}

absl::StatusOr<Segment> Segment::CreateNamed() {
  for (int tries = 1;; ++tries) {
    const std::string name = FreshName(), path = absl::StrCat(kMount, "/", name);
    try {
      const bip::shared_memory_object made(bip::create_only, name.c_str(), bip::read_write,
                                           bip::permissions(0600));
      absl::StatusOr<Segment> segment = OpenPath(path);
      if (segment.ok()) {
        segment->impl_->name = name;
        segment->impl_->namer = getpid();
      } else {
        bip::shared_memory_object::remove(name.c_str());
      }
      return segment;
    } catch (const bip::interprocess_exception& error) {
      const bool taken = error.get_error_code() == bip::already_exists_error ||
                         error.get_error_code() == bip::security_error;
      if (taken && tries < kNameTries) continue;
      return absl::InternalError(
          absl::StrCat("shared memory: cannot make ", path, ": ", error.what()));
    }
  }
}

absl::StatusOr<Segment> Segment::Open(const SegmentPlace& place) {
  const std::string path = place.path.data();
  const auto is_it = [&](int error, const struct stat& file) {
    return error == 0 && file.st_dev == place.device && file.st_ino == place.inode;
  };
  const absl::Status gone = absl::NotFoundError(
      absl::StrCat("shared memory: it is not at ", path, "; ranks of one node must see the same ",
                   kMount, " and each other's processes"));
  // Asked before it is opened: behind another's descriptor may be anything.
  struct stat file = {};
  if (!is_it(stat(path.c_str(), &file), file)) return gone;
  ZH_ASSIGN_OR_RETURN(Segment segment, OpenPath(path));
  if (!is_it(fstat(segment.descriptor(), &file), file)) return gone;
  return segment;
}

absl::StatusOr<Segment> Segment::OpenPath(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  try {
    impl->file = bip::file_mapping(path.c_str(), bip::read_write);
  } catch (const bip::interprocess_exception& error) {
    return absl::InternalError(
        absl::StrCat("shared memory: cannot open ", path, ": ", error.what()));
  }
  Segment segment(std::move(impl));
  // Boost leaves it to programs that this one starts, where it would hold the memory.
  fcntl(segment.descriptor(), F_SETFD, FD_CLOEXEC);
  return segment;
}

Segment::Segment(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Segment::Segment(Segment&&) noexcept = default;

Segment& Segment::operator=(Segment&& other) noexcept {
  std::swap(impl_, other.impl_);
  return *this;
}

Segment::~Segment() {
  if (impl_ != nullptr) Unlink();
}

absl::Status Segment::Reserve(int64_t bytes) {
  ZH_CHECK(bytes >= 0 && this->bytes() == 0 && impl_->namer == 0, bytes);
  const int64_t available = AvailableMemoryBytes();
  if (bytes > available) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "shared memory: asked ", bytes, " bytes, available ", available,
        " bytes of memory on this node and under its cgroup's limit; give the job more "
        "memory or more nodes"));
  }
  const int64_t pages_bytes = base::AlignUp(bytes, base::kPageBytes);
  const int error = ReserveFile(descriptor(), pages_bytes);
  if (error == 0) return absl::OkStatus();
  // A part may have been taken, by a file system that does not give it back itself.
  const bool emptied = ftruncate(descriptor(), 0) == 0;
  ZH_CHECK(emptied, errno);
  return OutOfSpace(pages_bytes, error);
}

SegmentPlace Segment::place() const {
  const std::string path = impl_->namer != 0
                               ? absl::StrCat(kMount, "/", impl_->name)
                               : absl::StrCat("/proc/", getpid(), "/fd/", descriptor());
  struct stat file = {};
  fstat(descriptor(), &file);
  SegmentPlace place{{}, file.st_dev, file.st_ino};
  ZH_CHECK(path.size() < place.path.size(), path);
  std::ranges::copy(path, place.path.begin());
  return place;
}

int64_t Segment::bytes() const {
  struct stat file = {};
  fstat(descriptor(), &file);
  return file.st_size;
}

int Segment::descriptor() const { return impl_->file.get_mapping_handle().handle; }

void Segment::Unlink() {
  // A forked child has a copy of this object, and no say over the name.
  if (impl_->namer != getpid()) return;
  bip::shared_memory_object::remove(impl_->name.c_str());
  impl_->namer = 0;
}

}  // namespace zerohold::memory
