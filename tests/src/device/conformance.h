// What every device must do. A new backend adds one file with
//   INSTANTIATE_TEST_SUITE_P(Name, DeviceConformance, testing::Values(&CreateNameDevice));
// and links conformance.cc.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "src/device/device.h"

namespace zerohold::device {

class DeviceConformance : public testing::TestWithParam<std::unique_ptr<Device> (*)()> {
 protected:
  std::unique_ptr<Device> device_ = GetParam()();
};

// Work that does not end before Open; goes into a stream by Run(&Gate::Pass, &gate).
class Gate {
 public:
  static void Pass(void* gate) { static_cast<Gate*>(gate)->open_.wait(false); }
  void Open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_{false};
};

}  // namespace zerohold::device
