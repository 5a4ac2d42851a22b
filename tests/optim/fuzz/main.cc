// fuzz-engine FIRST COUNT [FOLDER] [wrong|astray|faults]: programs FIRST.. of random models and
// steps, each in several ways that must give the same bits; with "wrong", calls in any order
// instead; with "astray", calls that one rank makes alone; with "faults", disks that fail. Ends at
// the first program that does not hold, and says which.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "tests/optim/fuzz/program.h"

namespace {

using namespace zerohold;  // NOLINT

constexpr int kWays = 4;
constexpr unsigned kSeconds = 120;  // for one program

bool Holds(uint64_t seed, const fuzz::Way& way, const std::string& why) {
  if (why.empty()) return true;
  std::printf("program %lu does not hold\n%s%s\n%s\n", seed,
              fuzz::Describe(fuzz::MakeProgram(seed)).c_str(), fuzz::Describe(way).c_str(),
              why.c_str());
  return false;
}

bool Try(uint64_t seed, const std::string& folder, std::string_view mode) {
  const fuzz::Program program = fuzz::MakeProgram(seed);
  const bool astray = mode == "astray";
  const bool wrong = mode == "wrong" || astray;
  const bool faults = mode == "faults";
  // Who shares no parameter that is lost hears of it only in the next step; and what is out of
  // range for one may not be for another.
  if ((faults || wrong) && !program.splits.empty()) return true;
  const fuzz::Way plain = {program.options, {}, {}};
  std::vector<fuzz::Outcome> expected;
  if (!wrong) {
    expected = fuzz::Run(program, plain);
    if (!Holds(seed, plain, fuzz::Compare(expected, expected))) return false;
  }
  fuzz::Random random(seed + 77);
  for (int i = 0; i < kWays; ++i) {
    const fuzz::Way way = faults ? fuzz::VaryWithFaults(program, random, folder)
                                 : fuzz::Vary(program, random, folder);
    const std::string why = astray   ? fuzz::RunAstray(program, way, seed + i)
                            : wrong  ? fuzz::RunWrongUse(program, way, seed + i)
                            : faults ? fuzz::CompareFaulty(expected, fuzz::Run(program, way))
                                     : fuzz::Compare(expected, fuzz::Run(program, way));
    if (!Holds(seed, way, why)) return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::puts("fuzz-engine FIRST COUNT [FOLDER] [wrong|astray|faults]");
    return 2;
  }
  const uint64_t first = std::strtoull(argv[1], nullptr, 10);
  const uint64_t count = std::strtoull(argv[2], nullptr, 10);
  const std::string folder = argc > 3 ? argv[3] : ".";
  const std::string mode = argc > 4 ? argv[4] : "";
  for (uint64_t seed = first; seed < first + count; ++seed) {
    alarm(kSeconds);  // a program that hangs ends here
    std::fprintf(stderr, "\rprogram %lu ", seed);
    const bool holds = Try(seed, folder, mode);
    std::fflush(stdout);
    if (!holds) return 1;
  }
  std::printf("%lu programs hold\n", count);
  return 0;
}
