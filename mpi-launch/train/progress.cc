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

void Progress::Show(int64_t step, const StepReport& report, double tokens_per_s) {
  skipped_ += report.applied ? 0 : 1;
  if (on_terminal_) {
    const bool due = Clock::now() - shown_ > std::chrono::milliseconds(100);
    if (!due && step != steps_) return;
    shown_ = Clock::now();
    ShowBar(step, Describe(step, report, tokens_per_s));
    return;
  }
  // About twenty lines a run, those of evaluations, and one wherever it was silent for long.
  const int64_t every = std::max<int64_t>(1, steps_ / 20);
  const bool silent = Clock::now() - shown_ >= kLongestSilence;
  if (!silent && step % every != 0 && step != steps_ && !report.evaluation_loss) return;
  shown_ = Clock::now();
  std::printf("step %lld/%lld  %s\n", static_cast<long long>(step), static_cast<long long>(steps_),
              Describe(step, report, tokens_per_s).c_str());
  std::fflush(stdout);
}

std::string Progress::Describe(int64_t step, const StepReport& report, double tokens_per_s) const {
  char text[64];
  std::snprintf(text, sizeof(text), "loss %.4f", report.loss);
  std::string all = text;
  if (report.evaluation_loss) {
    std::snprintf(text, sizeof(text), "  evaluation %.4f", *report.evaluation_loss);
    all += text;
  }
  if (skipped_ > 0) {
    std::snprintf(text, sizeof(text), "  %lld skipped, loss scale %g",
                  static_cast<long long>(skipped_), report.loss_scale);
    all += text;
  }
  std::snprintf(text, sizeof(text), "  %.0f tokens/s  %.0f s left", tokens_per_s,
                SecondsLeft(step));
  return all + text;
}

void Progress::ShowBar(int64_t step, const std::string& description) const {
  constexpr int kWidth = 30;
  const int done = static_cast<int>(kWidth * step / steps_);
  std::printf("\r[%s%s] %lld/%lld  %s  ", std::string(done, '=').c_str(),
              std::string(kWidth - done, ' ').c_str(), static_cast<long long>(step),
              static_cast<long long>(steps_), description.c_str());
  if (step == steps_) std::printf("\n");
  std::fflush(stdout);
}

double Progress::SecondsLeft(int64_t step) const {
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  return seconds / static_cast<double>(step) * static_cast<double>(steps_ - step);
}

}  // namespace zerohold::train
