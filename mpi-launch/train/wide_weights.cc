#include "mpi-launch/train/wide_weights.h"

#include <utility>

namespace zerohold::train {

using torch::Tensor;

void WideWeights::Add(Tensor weight) {
  Tensor leaf = torch::empty(weight.sizes(), torch::kFloat32);
  leaf.requires_grad_();
  // Without its own counter autograd would take each new Attach for a change of what it has saved.
  stand_ins_.push_back({std::move(weight), leaf.variable_data()});
  leaf.storage().set_data_ptr_noswap({});
  leaves_.push_back(std::move(leaf));
}

void WideWeights::Attach(size_t index) {
  StandIn& stand_in = stand_ins_[index];
  if (stand_in.attached++ > 0) return;
  const c10::Storage& storage = stand_in.values.storage();
  std::vector<at::DataPtr>& spare = spare_[storage.nbytes()];
  if (spare.empty()) spare.push_back(storage.allocator()->allocate(storage.nbytes()));
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(spare.back()));
  spare.pop_back();
  stand_in.values.copy_(stand_in.weight);
}

void WideWeights::Detach(size_t index) {
  StandIn& stand_in = stand_ins_[index];
  if (--stand_in.attached > 0) return;
  const c10::Storage& storage = stand_in.values.storage();
  spare_[storage.nbytes()].push_back(storage.unsafeGetStorageImpl()->set_data_ptr({}));
}

void WideWeights::MoveGradient(size_t index, Tensor sum) {
  const torch::NoGradGuard no_graph;
  Tensor& gradient = leaves_[index].mutable_grad();
  sum.add_(gradient);
  gradient.reset();
}

}  // namespace zerohold::train
