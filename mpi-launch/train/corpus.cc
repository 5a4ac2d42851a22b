#include "mpi-launch/train/corpus.h"

#include <Random123/philox.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

namespace zerohold::train {
namespace {

namespace fs = std::filesystem;

// The regular files that `path` stands for, sorted.
StatusOr<std::vector<fs::path>> FilesOf(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status)) {
    return absl::NotFoundError("--data " + path + " does not exist: give files or folders of text");
  }
  if (fs::is_regular_file(status)) return std::vector<fs::path>{path};
  if (!fs::is_directory(status)) {
    return absl::InvalidArgumentError(
        "--data " + path + " is neither a file nor a folder: give files or folders of text");
  }
  std::vector<fs::path> files;
  fs::recursive_directory_iterator entry(path, error), end;
  for (; !error && entry != end; entry.increment(error)) {
    std::error_code dangling;
    if (entry->is_regular_file(dangling)) files.push_back(entry->path());
  }
  if (error) {
    return absl::NotFoundError("--data " + path + ": " + error.message() +
                               ": give a folder that can be read");
  }
  std::sort(files.begin(), files.end());
  return files;
}

Status AppendFile(const fs::path& path, std::string& bytes) {
  std::ifstream in(path, std::ios::binary);
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (in && !error) {
    const size_t begin = bytes.size();
    bytes.resize(begin + size);
    in.read(bytes.data() + begin, static_cast<std::streamsize>(size));
    if (in.gcount() == static_cast<std::streamsize>(size)) return absl::OkStatus();
  }
  return absl::NotFoundError("--data " + path.string() + " cannot be read (" +
                             (error ? error.message() : std::strerror(errno)) +
                             "): give a file that can");
}

}  // namespace

StatusOr<Corpus> Corpus::Read(const std::vector<std::string>& paths) {
  Corpus corpus;
  std::set<fs::path> seen;
  for (const std::string& path : paths) {
    StatusOr<std::vector<fs::path>> files = FilesOf(path);
    if (!files.ok()) return files.status();
    for (const fs::path& file : *files) {
      std::error_code error;
      if (!seen.insert(fs::canonical(file, error)).second) continue;
      if (Status s = AppendFile(file, corpus.bytes_); !s.ok()) return s;
      ++corpus.files_;
    }
  }
  if (corpus.bytes_.empty()) {
    std::string names;
    for (const std::string& path : paths) names += (names.empty() ? "" : " ") + path;
    return absl::InvalidArgumentError("--data " + names +
                                      " holds no bytes: give files or folders of text");
  }
  return corpus;
}

uint64_t Corpus::Hash() const { return XXH3_64bits(bytes_.data(), bytes_.size()); }

double Corpus::UnigramEntropy() const {
  std::array<int64_t, 256> counts{};
  for (const char c : bytes_) ++counts[static_cast<unsigned char>(c)];
  double entropy = 0;
  for (const int64_t count : counts) {
    if (count == 0) continue;
    const double p = static_cast<double>(count) / static_cast<double>(bytes_.size());
    entropy -= p * std::log(p);
  }
  return entropy;
}

int64_t Corpus::WindowBegin(uint64_t seed, int64_t step, int64_t sample,
                            int64_t window_bytes) const {
  const r123::Philox2x64::ctr_type counter = {
      {static_cast<uint64_t>(step), static_cast<uint64_t>(sample)}};
  const r123::Philox2x64::key_type key = {{seed}};
  const uint64_t random = r123::Philox2x64()(counter, key)[0];
  const uint64_t choices = bytes_.size() - static_cast<uint64_t>(window_bytes) + 1;
  // The high half of the product: even to 1 in 2^64 / choices, without a division.
  return static_cast<int64_t>((static_cast<unsigned __int128>(random) * choices) >> 64);
}

}  // namespace zerohold::train
