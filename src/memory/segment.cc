// Boost.Interprocess makes, opens and removes the name; the space is reserved through its
// descriptor.
#include "src/memory/segment.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <boost/interprocess/exceptions.hpp>
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
#include "src/memory/available.h"

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

// Takes the space now, or says that it is not there; a tmpfs file grows happily and faults when
// touched. Returns 0 or an errno.
int Reserve(int descriptor, int64_t bytes) {
  int error = 0;
  do {
    error = posix_fallocate(descriptor, 0, bytes);
  } while (error == EINTR);
  return error;
}

absl::Status OutOfSpace(int64_t bytes, int error) {
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
  bip::shared_memory_object object;
  std::string name;
  int64_t bytes = 0;
  pid_t namer = 0;  // the process that takes the name away; 0 when done, or not ours to do
};

absl::StatusOr<Segment> Segment::Create(int64_t bytes) {
  ZH_CHECK(bytes >= 0, bytes);
  const int64_t available = AvailableMemoryBytes();
  if (available > 0 && bytes > available) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shared memory: asked ", bytes, " bytes, available ", available,
                     " bytes of memory on this node; give the job more memory or more nodes"));
  }
  auto impl = std::make_unique<Impl>();
  for (int tries = 1; impl->namer == 0; ++tries) {
    impl->name = FreshName();
    try {
      impl->object = bip::shared_memory_object(bip::create_only, impl->name.c_str(),
                                               bip::read_write, bip::permissions(0600));
      impl->namer = getpid();
    } catch (const bip::interprocess_exception& error) {
      const bool taken = error.get_error_code() == bip::already_exists_error ||
                         error.get_error_code() == bip::security_error;
      if (taken && tries < kNameTries) continue;
      return absl::InternalError(
          absl::StrCat("shared memory: cannot make ", kMount, "/", impl->name, ": ", error.what()));
    }
  }
  impl->bytes = base::AlignUp(bytes, base::kPageBytes);
  Segment segment(std::move(impl));  // from here on its destructor cleans up
  const int error = bytes > 0 ? Reserve(segment.descriptor(), segment.bytes()) : 0;
  if (error != 0) return OutOfSpace(segment.bytes(), error);
  return segment;
}

absl::StatusOr<Segment> Segment::Open(const std::string& name) {
  auto impl = std::make_unique<Impl>();
  impl->name = name;
  try {
    impl->object = bip::shared_memory_object(bip::open_only, name.c_str(), bip::read_write);
    bip::offset_t bytes = 0;
    impl->object.get_size(bytes);
    impl->bytes = bytes;
  } catch (const bip::interprocess_exception& error) {
    const std::string text =
        absl::StrCat("shared memory: cannot open ", kMount, "/", name, ": ", error.what(),
                     "; ranks of one node must see the same ", kMount);
    return error.get_error_code() == bip::not_found_error ? absl::NotFoundError(text)
                                                          : absl::InternalError(text);
  }
  return Segment(std::move(impl));
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

const std::string& Segment::name() const { return impl_->name; }
int64_t Segment::bytes() const { return impl_->bytes; }
int Segment::descriptor() const { return impl_->object.get_mapping_handle().handle; }

void Segment::Unlink() {
  // A forked child has a copy of this object, and no say over the name.
  if (impl_->namer != getpid()) return;
  bip::shared_memory_object::remove(impl_->name.c_str());
  impl_->namer = 0;
}

}  // namespace zerohold::memory
