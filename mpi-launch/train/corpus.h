// The text that is trained on: bytes of files, and which windows of them a step sees. Which sample
// is seen is a function of (seed, step, index in the global batch) alone, so it does not depend on
// the number of ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "zerohold/status.h"

namespace zerohold::train {

class Corpus {
 public:
  // Reads files, and folders with all below them in sorted order; a file that is met twice, by a
  // symbolic link too, counts once. Errors: NotFound or InvalidArgument naming the path and the
  // mend.
  static StatusOr<Corpus> Read(const std::vector<std::string>& paths);

  const std::string& bytes() const { return bytes_; }
  int64_t files() const { return files_; }
  uint64_t Hash() const;  // XXH3-64

  // -sum p ln p over the bytes' frequencies, in nats: the loss of a model that only counts bytes.
  double UnigramEntropy() const;

  // Where sample `sample` of step `step` begins: a window of window_bytes, evenly drawn.
  // Requires: window_bytes <= bytes().size().
  int64_t WindowBegin(uint64_t seed, int64_t step, int64_t sample, int64_t window_bytes) const;

 private:
  std::string bytes_;
  int64_t files_ = 0;
};

}  // namespace zerohold::train
