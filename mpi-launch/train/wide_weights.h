// fp32 stand-ins for weights of a type that torch cannot compute in. A stand-in has memory only
// while it is attached, as the weight itself: what autograd keeps of it between the forward and the
// backward pass is an address without a page.
//
// Thread rule: the thread that computes.
// Invariant: a stand-in's values are those of its weight from the first Attach to the last Detach,
// so a backward pass under another Attach than its forward pass sees the same.
#pragma once

#include <torch/types.h>

#include <map>
#include <vector>

namespace zerohold::train {

class WideWeights {
 public:
  // Adds the stand-in of `weight`, a leaf that asks for a gradient.
  void Add(torch::Tensor weight);
  const std::vector<torch::Tensor>& leaves() const { return leaves_; }

  // Counted: the first reads the weight, which must be there; the last gives the memory back.
  void Attach(size_t index);
  void Detach(size_t index);

  // Adds the leaf's gradient to `sum`, rounding to its type, and forgets it.
  void MoveGradient(size_t index, torch::Tensor sum);

 private:
  struct StandIn {
    torch::Tensor weight;
    torch::Tensor values;  // the leaf's memory under a version counter of its own
    int attached = 0;
  };

  std::vector<torch::Tensor> leaves_;
  std::vector<StandIn> stand_ins_;
  std::map<size_t, std::vector<at::DataPtr>> spare_;  // by bytes: nothing is allocated once warm
};

}  // namespace zerohold::train
