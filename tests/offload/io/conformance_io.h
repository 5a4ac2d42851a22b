// What every IoBackend must do. A backend brings a BackendMaker and instantiates the suite with it:
//   INSTANTIATE_TEST_SUITE_P(Ring, IoConformance, testing::Values(...), NameOfMaker);
#pragma once

#include <absl/status/statusor.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "offload/io/backend.h"
#include "offload/io/record_file.h"

namespace zerohold::io {

struct BackendMaker {
  std::string name;
  // Unavailable where this machine refuses it: its tests are skipped and say so.
  std::function<absl::StatusOr<std::unique_ptr<IoBackend>>()> make;
  bool has_files = true;  // moves to and from the descriptors that it is given
};

class IoConformance : public testing::TestWithParam<BackendMaker> {
 protected:
  static constexpr int kFiles = 2;
  static constexpr int kDepth = 16;

  void SetUp() override;
  // The backend, open over two empty files and the memory told.
  void Open(std::span<const std::span<std::byte>> memory, int depth = kDepth);
  // Moves all of them, at most kDepth at a time, resubmitting what was moved in part.
  void MoveAll(std::vector<Transfer> transfers);
  // The results of transfers that were submitted; tags are their places.
  std::vector<int64_t> Results(const std::vector<Transfer>& transfers);

  std::unique_ptr<IoBackend> backend_;
  std::vector<RecordFile> files_;
  std::vector<int> descriptors_;
};

inline std::string NameOfMaker(const testing::TestParamInfo<BackendMaker>& info) {
  return info.param.name;
}

}  // namespace zerohold::io
