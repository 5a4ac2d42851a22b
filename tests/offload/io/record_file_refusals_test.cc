// Folders that cannot hold records: one line that names setting, folder, limit and mend.
#include <gmock/gmock.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include "offload/io/record_file.h"
#include "tests/offload/io/refuse_calls.h"
#include "tests/src/memory/child.h"

namespace zerohold::io {
namespace {

using memory::InChild;
using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;
const std::string kFolder = ZH_TEST_FOLDER;

std::string Refusal(const std::string& folder, int64_t bytes) {
  return RecordFile::Create(folder, bytes, [](auto&) {}).status().ToString();
}

TEST(RecordFileRefuses, AFolderThatIsNotThere) {
  EXPECT_EQ(Refusal(kFolder + "/none/such", 4096),
            "NOT_FOUND: nvme_paths: \"" + kFolder +
                "/none/such\" does not exist; make it, or name another folder");
  EXPECT_EQ(Refusal("/proc/self/exe", 4096),
            "NOT_FOUND: nvme_paths: \"/proc/self/exe\" is not a folder; name a folder");
}

TEST(RecordFileRefuses, AFolderInMemory) {
  struct statfs system = {};
  if (statfs("/dev/shm", &system) != 0 || system.f_type != TMPFS_MAGIC) {
    GTEST_SKIP() << "/dev/shm is no tmpfs here";
  }
  EXPECT_EQ(Refusal("/dev/shm", 4096),
            "FAILED_PRECONDITION: nvme_paths: \"/dev/shm\" lies in memory (tmpfs), so nothing "
            "would be spared; name a folder on a disk, or use the host tier");
}

TEST(RecordFileRefuses, AFolderInRamfs) {
  const std::string result = InChild([]() -> std::string {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("ramfs", "/mnt", "ramfs", 0, nullptr) != 0) {
      return "skip: cannot mount here";
    }
    return Refusal("/mnt", 4096);
  });
  if (result.starts_with("skip")) GTEST_SKIP() << result;
  EXPECT_THAT(result, HasSubstr("\"/mnt\" lies in memory (ramfs)"));
}

TEST(RecordFileRefuses, AFolderThatMayNotBeWritten) {
  const std::string result = InChild([]() -> std::string {
    if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return "skip: stays root";
    return Refusal("/proc/sys", 4096) + "\n" + Refusal("/usr", 4096);
  });
  if (result.starts_with("skip")) GTEST_SKIP() << result;
  EXPECT_THAT(result, HasSubstr("\nPERMISSION_DENIED: nvme_paths: \"/usr\" takes no file: "));
  EXPECT_THAT(result, HasSubstr("make it writable, or name another folder"));
}

TEST(RecordFileRefuses, TooLittleRoom) {
  struct statvfs mount = {};
  ASSERT_EQ(statvfs(kFolder.c_str(), &mount), 0);
  const int64_t asked =
      static_cast<int64_t>(mount.f_frsize) * static_cast<int64_t>(mount.f_blocks) + kMiB;
  const std::string text = Refusal(kFolder, asked);
  EXPECT_THAT(text, AllOf(HasSubstr("RESOURCE_EXHAUSTED: nvme_paths: \"" + kFolder + "\""),
                          HasSubstr("asked " + std::to_string(asked) + " bytes, free "),
                          HasSubstr(" bytes on the file system mounted at /"),
                          HasSubstr("free room there, or give more or other folders")));
}

TEST(RecordFileRefuses, MoreThanTheProcessMayWrite) {
  EXPECT_EQ(InChild([]() -> std::string {
              const rlimit limit = {kMiB, kMiB};
              setrlimit(RLIMIT_FSIZE, &limit);
              return Refusal(kFolder, 2 * kMiB);
            }),
            "RESOURCE_EXHAUSTED: nvme_paths: \"" + kFolder +
                "\" may not hold so large a file: asked 2097152 bytes, the limit of this process "
                "is 1048576; raise `ulimit -f`, or give more folders");
}

TEST(RecordFileRefuses, RoomThatIsGoneWhenItIsTaken) {
  const std::string result = InChild([]() -> std::string {
    const std::string skip = RefuseCall(__NR_fallocate, ENOSPC);
    return skip.empty() ? Refusal(kFolder, 4096) : skip;
  });
  if (result.starts_with("skip")) GTEST_SKIP() << result;
  EXPECT_THAT(result, AllOf(HasSubstr("RESOURCE_EXHAUSTED"), HasSubstr("asked 4096 bytes, free ")));
}

// A real file system of 64 MiB: one file fits, the second is refused with the numbers and the
// mount.
TEST(RecordFileRefuses, TheSecondFileOfASmallDisk) {
  const std::string image = kFolder + "/small_disk.image";
  const std::string point = kFolder + "/small_disk";
  std::filesystem::create_directories(point);
  const std::string result = InChild([&]() -> std::string {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
      return "skip: cannot mount here";
    }
    const std::string command = "PATH=$PATH:/usr/sbin:/sbin; truncate -s 64M " + image +
                                " && mkfs.ext4 -q -F " + image + " && mount -o loop " + image +
                                " " + point;
    if (std::system(("{ " + command + "; } > /dev/null 2>&1").c_str()) != 0) {
      return "skip: cannot make a small file system here";
    }
    std::filesystem::create_directory(point + "/records");
    absl::StatusOr<RecordFile> first =
        RecordFile::Create(point + "/records", 32 * kMiB, [](auto&) {});
    std::string text = first.ok() ? "first: ok\n" : first.status().ToString();
    text += Refusal(point + "/records", 32 * kMiB);
    first = absl::UnknownError("closed");
    text += '\n';
    text += Refusal(point + "/records", 32 * kMiB);
    umount(point.c_str());
    return text;
  });
  std::filesystem::remove(image);
  std::filesystem::remove(point);
  if (result.starts_with("skip")) GTEST_SKIP() << result;
  EXPECT_THAT(result,
              AllOf(HasSubstr("first: ok\nRESOURCE_EXHAUSTED: nvme_paths: \"" + point +
                              "/records\" has too little room: asked 33554432 bytes, free "),
                    HasSubstr(" bytes on the file system mounted at " + point + ";"),
                    // With the first file its room came back.
                    testing::EndsWith("\nOK")));
}

}  // namespace
}  // namespace zerohold::io
