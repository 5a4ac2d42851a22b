#include "mpi-launch/blas.h"

#include <dlfcn.h>

namespace zerohold::launch {
namespace {

template <typename Function>
Function* Find(const char* symbol) {
  void* const library = dlopen("libblas.so.3", RTLD_LAZY | RTLD_GLOBAL);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, symbol));
}

// The fastest code of OpenBLAS that this CPU can run, by its flags.
std::string CoreType() {
  if (HasAvx512()) return "SkylakeX";
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return "Haswell";
#endif
  return "";
}

}  // namespace

bool HasAvx512() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
#else
  return false;
#endif
}

BlasReport ProbeBlas() {
  const auto core_name = Find<const char*()>("openblas_get_corename");
  if (core_name == nullptr) {
    const bool there = Find<void()>("sgemm_") != nullptr;
    return {there ? "not OpenBLAS" : "none",
            "zh-train multiplies many times slower: apt-get install libopenblas0"};
  }
  BlasReport report{"OpenBLAS, code for " + std::string(core_name()), ""};
  // What it takes for a CPU of a model that it does not know, whatever that can do.
  const bool fallback = std::string(core_name()) == "Prescott";
  if (fallback && !CoreType().empty()) {
    report.hint =
        "OpenBLAS does not know this CPU and multiplies several times slower than it could: "
        "export OPENBLAS_CORETYPE=" +
        CoreType() + " (mpirun -x OPENBLAS_CORETYPE)";
  }
  return report;
}

void SetBlasThreads(int threads) {
  if (const auto set = Find<void(int)>("openblas_set_num_threads")) set(threads);
}

}  // namespace zerohold::launch
