#include "optim/kernels/cpu/cpu_features.h"

namespace zerohold::kernels {

CpuFeatures DetectCpuFeatures() {
  CpuFeatures features;
#if defined(__x86_64__)
  // The compiler's run-time looks at XCR0 too: a kernel that does not save the registers means no.
  features.avx2 = __builtin_cpu_supports("avx2");
  features.avx512 = features.avx2 && __builtin_cpu_supports("avx512f") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
  return features;
}

bool Supports(const CpuFeatures& features, InstructionSet set) {
  if (set == InstructionSet::kV3) return features.avx2;
  if (set == InstructionSet::kV4) return features.avx512;
  return true;
}

InstructionSet WidestSet(const CpuFeatures& features) {
  if (features.avx512) return InstructionSet::kV4;
  if (features.avx2) return InstructionSet::kV3;
  return InstructionSet::kBaseline;
}

}  // namespace zerohold::kernels
