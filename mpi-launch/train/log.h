// The run's record: one JSON object a line.
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "mpi-launch/train/trainer.h"
#include "zerohold/status.h"

namespace zerohold::train {

// What a whole run came to.
struct RunReport {
  int64_t steps = 0;
  int64_t skipped = 0;  // of them
  double loss = 0;      // of the last
  std::string parameters_hash;
};

class Log {
 public:
  // "" writes nowhere. Errors: InvalidArgument naming the path and the mend.
  Status Open(const std::string& path);
  void AddStep(int64_t step, const StepReport& report, double tokens_per_s);
  void AddFinal(const RunReport& run);
  // DataLoss if not all could be written.
  Status Close();

 private:
  std::string path_;
  std::ofstream out_;
};

}  // namespace zerohold::train
