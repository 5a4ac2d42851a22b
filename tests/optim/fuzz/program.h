// What a fuzzer runs: a model, a script of calls that all ranks make alike, and the ways in which
// it may be carried out. All follow from one seed.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "zerohold/engine.h"

namespace zerohold::fuzz {

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  // In [0, n).
  int64_t Below(int64_t n) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(n)); }
  bool OneIn(int64_t n) { return Below(n) == 0; }
  template <typename T>
  T Of(std::initializer_list<T> choices) {
    return choices.begin()[Below(static_cast<int64_t>(choices.size()))];
  }

 private:
  std::mt19937_64 engine_;
};

struct Model {
  std::vector<ParameterSpec> parameters;
  std::vector<UnitSpec> units;
};

// Ranks of one colour have a communicator of their own: neighbours, or every n-th.
struct Split {
  int ranks = 1;
  bool neighbours = false;
  bool uneven = false;  // what each colour holds has its own size
  int ColorOf(int rank) const { return neighbours ? rank / ranks : rank % ranks; }
};

// The same numbers everywhere; which ranks leave out which units is drawn from `seed`.
struct Step {
  uint64_t seed = 0;
  int micro_batches = 1;   // none: the step is refused
  bool flush = false;      // without a last micro-batch
  bool evaluates = false;  // a pass before it
  bool interrupts =
      false;            // evaluation passes between its micro-batches and before its backward pass
  bool nests = false;   // units are acquired twice
  bool holds = false;   // units are released, and reported, behind the next one
  bool adds = false;    // AddUnits before it
  bool adopts = false;  // AdoptParameters before it
  bool overflows = false;  // one element is not finite on one rank
  int writes = 0;          // calls of Write, Acquire(kWrite) and Read before it
  bool sparse = false;     // units are absent at random
  bool apart = false;      // each rank leaves out others
  bool shuffled = false;   // backward pass in another order
};

struct Program {
  int world = 1;
  std::vector<Split> splits;  // communicators behind the first
  Model model;
  Model later;
  EngineOptions options;  // at least_stage, in host memory
  int least_stage = 0;    // stages that give the same bits
  int most_stage = 3;
  bool abandons = false;  // a window is left open at the end
  std::vector<Step> steps;
};

// How a program is carried out.
struct Way {
  EngineOptions options;
  std::vector<std::optional<OffloadOptions>> moves;  // before each step
  std::vector<std::string> faults;                   // of each rank's disk; empty: the options'
  bool uneven = false;                               // each rank has budgets of its own
};

Program MakeProgram(uint64_t seed);
// Another way that must give the same bits.
Way Vary(const Program& program, Random& random, const std::string& folder);
// One whose disk fails sooner or later, on one rank or on all.
Way VaryWithFaults(const Program& program, Random& random, const std::string& folder);
std::string Describe(const Program& program);
std::string Describe(const Way& way);

// What a rank gives, where all are told `offload`.
OffloadOptions OffloadOf(const Way& way, OffloadOptions offload, int rank);

// Of each rank.
std::vector<std::vector<Communicator>> MakeCommunicators(const Program& program);
Model ModelOf(const Program& program, const Model& model, int rank);

// What a rank's run came to; equal for all ways.
struct Outcome {
  std::vector<float> states;
  std::vector<std::pair<std::string, double>> told;
  Status failure;  // of the first call that failed, and which it was
  std::string failed_in;
};
std::vector<Outcome> Run(const Program& program, const Way& way);
// Empty, or the first difference, or failure.
std::string Compare(const std::vector<Outcome>& a, const std::vector<Outcome>& b);
// All ranks hold, or all fail in the same call in the same way, as a disk makes them.
std::string CompareFaulty(const std::vector<Outcome>& a, const std::vector<Outcome>& faulty);

// Calls in any order, the same on all ranks; then a right step. Empty, or what went wrong.
std::string RunWrongUse(const Program& program, const Way& way, uint64_t seed);
// The same, but one rank makes calls that the others do not; what matters is that all calls end.
std::string RunAstray(const Program& program, const Way& way, uint64_t seed);

}  // namespace zerohold::fuzz
