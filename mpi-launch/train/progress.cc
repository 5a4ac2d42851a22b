#include "mpi-launch/train/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

namespace zerohold::train {
namespace {

// mpirun gives its ranks a pseudo-terminal, wherever it writes itself: that is what counts then.
bool OutputIsTerminal() {
  const std::string parent = "/proc/" + std::to_string(getppid());
  std::string name;
  std::ifstream(parent + "/comm") >> name;
  if (name.starts_with("orted")) return false;  // another node's: its output goes through the net
  const bool launched =
      name.starts_with("mpirun") || name.starts_with("mpiexec") || name.starts_with("orterun");
  if (!launched) return isatty(STDOUT_FILENO);
  char target[64] = {};
  const ssize_t length = readlink((parent + "/fd/1").c_str(), target, sizeof(target) - 1);
  const std::string output(target, std::max<ssize_t>(length, 0));
  return output.starts_with("/dev/pts/") || output.starts_with("/dev/tty");
}

}  // namespace

Progress::Progress(int64_t steps) : steps_(steps), on_terminal_(OutputIsTerminal()) {}

void Progress::Show(int64_t step, double loss, double tokens_per_s) {
  if (on_terminal_) {
    const bool due = Clock::now() - shown_ > std::chrono::milliseconds(100);
    if (!due && step != steps_) return;
    shown_ = Clock::now();
    ShowBar(step, loss, tokens_per_s);
    return;
  }
  // About twenty lines a run.
  const int64_t every = std::max<int64_t>(1, steps_ / 20);
  if (step != 1 && step % every != 0 && step != steps_) return;
  std::printf("step %lld/%lld  loss %.4f  %.0f tokens/s  %.0f s left\n",
              static_cast<long long>(step), static_cast<long long>(steps_), loss, tokens_per_s,
              SecondsLeft(step));
  std::fflush(stdout);
}

void Progress::ShowBar(int64_t step, double loss, double tokens_per_s) const {
  constexpr int kWidth = 30;
  const int done = static_cast<int>(kWidth * step / steps_);
  std::printf("\r[%s%s] %lld/%lld  loss %.4f  %.0f tokens/s  %.0f s left  ",
              std::string(done, '=').c_str(), std::string(kWidth - done, ' ').c_str(),
              static_cast<long long>(step), static_cast<long long>(steps_), loss, tokens_per_s,
              SecondsLeft(step));
  if (step == steps_) std::printf("\n");
  std::fflush(stdout);
}

double Progress::SecondsLeft(int64_t step) const {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  return seconds / static_cast<double>(step) * static_cast<double>(steps_ - step);
}

}  // namespace zerohold::train
