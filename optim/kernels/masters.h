// Masters in the form in which they are stored, in and out of plain fp32: for reading, writing and
// adopting values between steps. Arrays of `elems`, not overlapping.
#pragma once

#include <cstdint>

#include "optim/kernels/storage.h"
#include "zerohold/options.h"
#include "zerohold/tensor.h"

namespace zerohold::kernels {

// `master` means nothing where the copy is fp32.
struct WeightForm {
  DType copy = DType::kFloat32;
  MasterForm master = MasterForm::kFloat32;
};

// Bytes of one element beside its copy: 0 where the copy is the master, 4, or 2 of a remainder.
int64_t MasterBytes(WeightForm form);

// `master` and `copy` are as in UpdateOperands. Exact.
void MastersToFloat(const void* master, const void* copy, WeightForm form, int64_t elems,
                    float* out);

// Sets both. A later MastersToFloat gives `in` back, save the lower payload of a NaN in a
// remainder.
void MastersFromFloat(const float* in, int64_t elems, WeightForm form, void* master, void* copy);

// The masters become what the copies say, exactly.
void MastersFromCopies(const void* copy, int64_t elems, WeightForm form, void* master);

// Requires: no remainder beside fp16.
FormRow FormOf(WeightForm form);

}  // namespace zerohold::kernels
