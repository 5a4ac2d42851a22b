// Loaded before zh-train, it makes the mistake that a trainer can make: it reads a gradient after
// the step that took its memory away.
#include <dlfcn.h>
#include <mpi.h>

#include "zerohold/engine.h"

namespace {
const volatile float* first_gradient = nullptr;
}

zerohold::TensorView zerohold::Engine::Gradient(ParameterId id) const {
  using Function = TensorView (*)(const Engine*, ParameterId);
  static const auto real =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, "_ZNK8zerohold6Engine8GradientEi"));
  const TensorView view = real(this, id);
  if (id == 0) first_gradient = static_cast<const float*>(view.data);
  return view;
}

// zh-train sums the losses of all ranks once the step is done.
extern "C" int MPI_Allreduce(const void* in, void* out, int count, MPI_Datatype type, MPI_Op op,
                             MPI_Comm communicator) {
  if (first_gradient != nullptr) static_cast<void>(*first_gradient);
  return PMPI_Allreduce(in, out, count, type, op, communicator);
}
