// Activation recompute: forget what a piece of the forward pass computed, compute it again when its
// gradient comes.
#pragma once

#include <torch/types.h>

#include <functional>

namespace zerohold::train {

// forward(input), keeping only `input`. The backward pass runs `forward` again and, through it,
// adds to the gradients of the weights that `forward` reads, just as without recompute: the same
// bits. Without gradients (NoGradGuard) it is forward(input) alone. Requires: with them,
// input.requires_grad(); `forward` gives the same at every call.
torch::Tensor Recompute(std::function<torch::Tensor(const torch::Tensor&)> forward,
                        const torch::Tensor& input);

}  // namespace zerohold::train
