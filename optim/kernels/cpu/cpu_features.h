// What the choice of an instruction set looks at: the features that its loops are compiled with,
// and never a vendor or a model.
#pragma once

#include "zerohold/options.h"

namespace zerohold::kernels {

// True: the processor has it and the operating system saves its registers.
struct CpuFeatures {
  bool avx2 = false;
  bool avx512 = false;  // F, BW, CD, DQ and VL
};

CpuFeatures DetectCpuFeatures();

// kBest is supported by all. A set is never kBest in the answer of WidestSet.
bool Supports(const CpuFeatures& features, InstructionSet set);
InstructionSet WidestSet(const CpuFeatures& features);

}  // namespace zerohold::kernels
