// How far the run is, for people: a bar on a terminal, some plain lines elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "mpi-launch/train/trainer.h"

namespace zerohold::train {

class Progress {
 public:
  explicit Progress(int64_t steps);

  // Tells of a finished step.
  void Show(int64_t step, const StepReport& report, double tokens_per_s);

 private:
  using Clock = std::chrono::steady_clock;

  // "loss 1.2  ...": what is told of a step, the skips so far among it.
  std::string Describe(int64_t step, const StepReport& report, double tokens_per_s) const;
  void ShowBar(int64_t step, const std::string& description) const;
  double SecondsLeft(int64_t step) const;

  static constexpr std::chrono::seconds kLongestSilence{15};

  const int64_t steps_;
  const bool on_terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point shown_;  // long ago, for the first step
  int64_t skipped_ = 0;
};

}  // namespace zerohold::train
