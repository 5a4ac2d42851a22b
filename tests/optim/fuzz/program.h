// What a fuzzer runs: a model, a script of calls that all ranks make alike, and the ways in which
// it may be carried out. All follow from one seed.
#pragma once

#include <cstdint>
#include <random>
#include <string>
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

// The same numbers everywhere; which ranks leave out which units is drawn from `seed`.
struct Step {
  uint64_t seed = 0;
  int micro_batches = 1;
  bool flush = false;      // without a last micro-batch
  bool evaluates = false;  // a pass before it
  bool adds = false;       // AddUnits before it
  bool overflows = false;  // one element is infinite on one rank
  int writes = 0;          // calls of Write, Acquire(kWrite) and Read before it
  bool sparse = false;     // units are absent at random
  bool shuffled = false;   // backward pass in another order
};

struct Program {
  int world = 1;
  Model model;
  Model later;
  EngineOptions options;  // at stage 0, in host memory
  std::vector<Step> steps;
};

Program MakeProgram(uint64_t seed);
// Another way that must give the same bits.
EngineOptions Vary(const Program& program, Random& random, const std::string& folder);
std::string Describe(const Program& program);
std::string Describe(const EngineOptions& options);

// What a run came to; equal for all ways. `failure` is empty unless a call failed.
struct Outcome {
  std::vector<float> states;
  std::vector<double> told;
  std::string failure;
};
Outcome Run(const Program& program, const EngineOptions& options);
// Empty, or the first difference.
std::string Compare(const Outcome& a, const Outcome& b);

// Calls in any order, the same on all ranks; then a right step. Empty, or what went wrong.
std::string RunWrongUse(const Program& program, const EngineOptions& options, uint64_t seed);

}  // namespace zerohold::fuzz
