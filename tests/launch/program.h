// Runs our programs as a user does: from a shell, with or without mpirun.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace zerohold::launch_test {

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// What `sh -c command` does and says.
Outcome RunShell(const std::string& command);

// "mpirun FLAGS -q -n RANKS "; append a program, and " : -n RANKS program" for more of them.
std::string Mpirun(int ranks);
// Path of a program in bin/.
std::string Program(const std::string& name);

// Append a command: it sees mounts that nobody else sees, made by `prepare` (without single
// quotes). Where they may not be made, its exit code is kNoMount.
std::string WithMounts(const std::string& prepare);
inline constexpr int kNoMount = 77;

// "zh-train FLAGS": what `flags` leave open makes a model so small that a run takes a second.
std::string TinyTrain(const std::string& flags);

// Whether the process ends within seconds; whether somebody has asked how does not matter.
bool Ends(const std::string& pid);

// A path that no other test and no other run has.
std::string TemporaryPath(const std::string& name);

// A new, empty folder on the disk of the build, where temporary files may lie in memory; it goes
// with the object, and whoever leaves a file in it fails the test.
class DiskFolder {
 public:
  DiskFolder();
  ~DiskFolder();
  DiskFolder(const DiskFolder&) = delete;
  DiskFolder& operator=(const DiskFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Runs TinyTrain on `ranks` ranks with a log and gives its lines; a failed run fails the test.
std::vector<nlohmann::json> TrainAndReadLog(int ranks, const std::string& flags);

// The final line's parameters_hash; "" if there is none.
std::string HashOf(const std::vector<nlohmann::json>& log);

}  // namespace zerohold::launch_test
