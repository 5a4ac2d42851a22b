// fuzz-engine FIRST COUNT [FOLDER] [wrong]: programs FIRST.. of random models and steps, each in
// several ways that must give the same bits; with "wrong", calls in any order instead. Ends at the
// first program that does not hold, and says which.
#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/optim/fuzz/program.h"

namespace {

using namespace zerohold;  // NOLINT

constexpr int kWays = 4;
constexpr unsigned kSeconds = 120;  // for one program

int Fails(uint64_t seed, const EngineOptions& options, const std::string& why) {
  std::printf("program %lu does not hold\n%s%s\n%s\n", seed,
              fuzz::Describe(fuzz::MakeProgram(seed)).c_str(), fuzz::Describe(options).c_str(),
              why.c_str());
  return 1;
}

int TryWays(uint64_t seed, const std::string& folder) {
  const fuzz::Program program = fuzz::MakeProgram(seed);
  const fuzz::Outcome expected = fuzz::Run(program, program.options);
  if (!expected.failure.empty()) return Fails(seed, program.options, expected.failure);
  fuzz::Random random(seed + 77);
  for (int way = 0; way < kWays; ++way) {
    const EngineOptions options = fuzz::Vary(program, random, folder);
    const fuzz::Outcome outcome = fuzz::Run(program, options);
    const std::string why =
        outcome.failure.empty() ? fuzz::Compare(expected, outcome) : outcome.failure;
    if (!why.empty()) return Fails(seed, options, why);
  }
  return 0;
}

int TryWrongUse(uint64_t seed, const std::string& folder) {
  const fuzz::Program program = fuzz::MakeProgram(seed);
  fuzz::Random random(seed + 77);
  for (int way = 0; way < kWays; ++way) {
    const EngineOptions options = fuzz::Vary(program, random, folder);
    const std::string why = fuzz::RunWrongUse(program, options, seed + way);
    if (!why.empty()) return Fails(seed, options, why);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::puts("fuzz-engine FIRST COUNT [FOLDER] [wrong]");
    return 2;
  }
  const uint64_t first = std::strtoull(argv[1], nullptr, 10);
  const uint64_t count = std::strtoull(argv[2], nullptr, 10);
  const std::string folder = argc > 3 ? argv[3] : ".";
  const bool wrong = argc > 4 && std::string(argv[4]) == "wrong";
  int failed = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    alarm(kSeconds);  // a program that hangs ends here
    std::fprintf(stderr, "\rprogram %lu ", seed);
    failed += wrong ? TryWrongUse(seed, folder) : TryWays(seed, folder);
    std::fflush(stdout);
    if (failed > 0) return 1;
  }
  std::printf("%lu programs hold\n", count);
  return failed;
}
