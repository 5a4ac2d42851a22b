// The run's record: one JSON object a line.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "mpi-launch/train/trainer.h"
#include "zerohold/status.h"

namespace zerohold::train {

class Log {
 public:
  // "" writes nowhere. Errors: InvalidArgument naming the path and the mend.
  Status Open(const std::string& path);
  void AddStep(int64_t step, const StepReport& report, double tokens_per_s);
  void AddFinal(int64_t steps, double loss, const std::string& parameters_hash);
  // DataLoss if not all could be written.
  Status Close();

 private:
  std::string path_;
  std::ofstream out_;
};

}  // namespace zerohold::train
