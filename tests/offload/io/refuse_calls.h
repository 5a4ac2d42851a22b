// Makes the kernel refuse a system call to this process and its threads for good, as a container's
// rules do. For forked children.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

#include <cstdint>
#include <string>
#include <vector>

namespace zerohold::io {

// Of an argument's low word.
struct Where {
  enum class Test { kEquals, kHasBits };
  uint32_t argument = 0;
  Test test = Test::kEquals;
  uint32_t value = 0;
};

// "" when it is in force. Requires: less than 100 conditions.
inline std::string RefuseCall(long call, int error, const std::vector<Where>& conditions = {}) {
  const auto all = static_cast<uint8_t>(2 * conditions.size() + 1);
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, all)};
  for (const Where& condition : conditions) {
    const auto left = static_cast<uint8_t>(all - (program.size() - 2) - 2);
    const auto offset =
        static_cast<uint32_t>(offsetof(seccomp_data, args) + sizeof(uint64_t) * condition.argument);
    const uint16_t test = condition.test == Where::Test::kEquals ? BPF_JEQ : BPF_JSET;
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset));
    program.push_back(
        BPF_JUMP(static_cast<uint16_t>(BPF_JMP | test | BPF_K), condition.value, 0, left));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)));
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    return "skip: this kernel takes no filter of system calls";
  }
  return "";
}

}  // namespace zerohold::io
