// How far the run is, for people: a bar on a terminal, some plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdint>

namespace zerohold::train {

class Progress {
 public:
  explicit Progress(int64_t steps);

  // Tells of a finished step.
  void Show(int64_t step, double loss, double tokens_per_s);

 private:
  using Clock = std::chrono::steady_clock;

  void ShowBar(int64_t step, double loss, double tokens_per_s) const;
  double SecondsLeft(int64_t step) const;

  const int64_t steps_;
  const bool on_terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_;
};

}  // namespace zerohold::train
