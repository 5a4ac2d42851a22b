#include "mpi-launch/train/log.h"

#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace zerohold::train {

using Json = nlohmann::ordered_json;

Status Log::Open(const std::string& path) {
  path_ = path;
  if (path.empty()) return absl::OkStatus();
  out_.open(path, std::ios::trunc);
  if (out_) return absl::OkStatus();
  return absl::InvalidArgumentError("--log " + path + " cannot be written (" +
                                    std::strerror(errno) + "): give a file in a folder that can");
}

void Log::AddStep(int64_t step, const StepReport& report, double tokens_per_s) {
  if (path_.empty()) return;
  Json line = {{"step", step},
               {"loss", report.loss},
               {"grad_norm", report.grad_norm},
               {"learning_rate", report.learning_rate},
               {"applied", report.applied},
               {"loss_scale", report.loss_scale},
               {"disk_read_bytes", report.disk_read_bytes},
               {"disk_written_bytes", report.disk_written_bytes},
               {"tokens_per_s", tokens_per_s}};
  if (report.evaluation_loss) line["evaluation_loss"] = *report.evaluation_loss;
  out_ << line.dump() << std::endl;  // flushed: others may be following
}

void Log::AddFinal(const RunReport& run) {
  if (path_.empty()) return;
  const Json line = {{"final", true},
                     {"steps", run.steps},
                     {"skipped", run.skipped},
                     {"loss", run.loss},
                     {"parameters_hash", run.parameters_hash}};
  out_ << line.dump() << std::endl;
}

Status Log::Close() {
  if (path_.empty()) return absl::OkStatus();
  out_.close();
  if (out_) return absl::OkStatus();
  return absl::DataLossError("--log " + path_ + " is not complete: is the disk full?");
}

}  // namespace zerohold::train
