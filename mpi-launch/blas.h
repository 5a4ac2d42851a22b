// The BLAS library that torch multiplies with: asked at run time, so that nothing here links to it.
#pragma once

#include <string>

namespace zerohold::launch {

struct BlasReport {
  std::string name;  // "OpenBLAS, code for SkylakeX", "none"
  std::string hint;  // what slows it down and what mends that; "" for nothing
};

// The parts of AVX-512 that OpenBLAS's widest code and oneDNN's bf16 ask for.
bool HasAvx512();

// Loads libblas.so.3 if the program has not.
BlasReport ProbeBlas();

// OpenBLAS with threads of its own hears of no other setting. Does nothing for other libraries.
void SetBlasThreads(int threads);

}  // namespace zerohold::launch
