#include "mpi-launch/train/recompute.h"

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <memory>
#include <utility>

namespace zerohold::train {
namespace {

using torch::Tensor;
using torch::autograd::variable_list;

class RecomputeNode : public torch::autograd::Node {
 public:
  RecomputeNode(std::function<Tensor(const Tensor&)> forward, const Tensor& input)
      : Node(torch::autograd::collect_next_edges(input)),
        forward_(std::move(forward)),
        input_(input, /*is_output=*/false) {}

  variable_list apply(variable_list&& gradients) override {
    Tensor input = input_.unpack().detach();
    input.requires_grad_();
    Tensor output;
    {
      const torch::AutoGradMode grad_mode(true);
      output = forward_(input);
    }
    // Nested: the accumulators of the weights and their hooks run inside this call.
    torch::autograd::backward({output}, {gradients[0]});
    return {input.grad()};
  }

  void release_variables() override { input_.reset_data(); }
  std::string name() const override { return "Recompute"; }

 private:
  std::function<Tensor(const Tensor&)> forward_;
  torch::autograd::SavedVariable input_;
};

}  // namespace

Tensor Recompute(std::function<Tensor(const Tensor&)> forward, const Tensor& input) {
  Tensor output;
  {
    const torch::NoGradGuard no_graph;
    output = forward(input);
  }
  if (!torch::GradMode::is_enabled()) return output;
  std::shared_ptr<RecomputeNode> node(new RecomputeNode(std::move(forward), input),
                                      torch::autograd::deleteNode);
  torch::autograd::set_history(output, node);
  return output;
}

}  // namespace zerohold::train
