// The CPU as a device. Truly asynchronous: every stream is a queue with its own worker thread.
#pragma once

#include <memory>

#include "src/device/device.h"

namespace zerohold::device {

std::unique_ptr<Device> CreateCpuDevice();

}  // namespace zerohold::device
