// Waiting for something that only polling shows.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace zerohold::comm {

// How a wait spends its time: at first it polls, since small messages take microseconds; then it
// gives the core to others, who may be the ranks it waits for; then it sleeps, since compute
// threads share it.
class Backoff {
 public:
  void Pause() {
    ++polls_;
    if (polls_ <= kSpins) return;
    if (polls_ <= kSpins + kYields) {
      sched_yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(2 * sleep_, kLongestSleep);
  }
  void Progressed() { *this = {}; }

 private:
  static constexpr int kSpins = 20;
  static constexpr int kYields = 100;
  static constexpr std::chrono::microseconds kLongestSleep{200};
  int polls_ = 0;
  std::chrono::microseconds sleep_{20};
};

}  // namespace zerohold::comm
