// The model: a decoder-only transformer over bytes, as a list of units and a pure function for
// each. It owns no weights: the trainer says where they lie.
//
//   embedding   token and position vectors, summed
//   block.i     x + attention(norm(x)), then x + mlp(norm(x))          (pre-norm, causal, GELU)
//   final       norm, logits by the embedding of unit 0 (tied), mean cross-entropy in nats
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "mpi-launch/train/corpus.h"
#include "mpi-launch/train/options.h"

namespace zerohold::train {

struct ModelParameter {
  std::string name;
  std::vector<int64_t> shape;
  double mean = 0;       // of the first values
  double deviation = 0;  // 0: all are `mean`
};

// Parameters [first, first + count) of the model's list.
struct ModelUnit {
  std::string name;
  size_t first = 0;
  size_t count = 0;
  std::vector<std::string> uses;
};

// {samples, context} bytes as int64; targets are the tokens one byte later.
struct Batch {
  torch::Tensor tokens;
  torch::Tensor targets;
};

// What a trainer does around a unit's passes; each is called on the thread that computes.
class UnitObserver {
 public:
  virtual ~UnitObserver() = default;
  virtual void BeforeForward(int /*unit*/) {}
  virtual void AfterForward(int /*unit*/) {}
  // The gradient has come to the unit's output, and nothing of its backward pass has run.
  virtual void BeforeBackward(int /*unit*/) {}
};

class Model {
 public:
  explicit Model(const Options& options);

  const std::vector<ModelParameter>& parameters() const { return parameters_; }
  const std::vector<ModelUnit>& units() const { return units_; }
  int64_t elems() const;
  // Indices into parameters(), by name.
  std::vector<size_t> OrderByName() const;
  // Only matrices decay.
  bool Decays(size_t parameter) const { return parameters_[parameter].shape.size() > 1; }

  // What Loss computes in: the type of the weights, or fp32 where torch is slow or lost in it.
  torch::ScalarType compute_type() const { return compute_type_; }

  // Writes the first values, the same on every rank, in the type of `values`.
  void Initialize(size_t parameter, uint64_t seed, torch::Tensor values) const;

  // The mean loss of a batch, in fp32. `weights` has one tensor of compute_type() for each
  // parameter and, as `observer`, must outlive the backward pass.
  torch::Tensor Loss(const std::vector<torch::Tensor>& weights, const Batch& batch,
                     UnitObserver& observer) const;

 private:
  using Weights = std::span<const torch::Tensor>;

  void AddUnit(const std::string& name, std::vector<ModelParameter> parameters,
               std::vector<std::string> uses = {});
  torch::Tensor Embed(Weights w, const torch::Tensor& tokens) const;
  torch::Tensor Block(Weights w, const torch::Tensor& x) const;
  torch::Tensor Attention(Weights w, const torch::Tensor& x) const;
  torch::Tensor Head(Weights w, const torch::Tensor& tied, const torch::Tensor& x,
                     const torch::Tensor& targets) const;

  int64_t heads_;
  int64_t width_;
  bool recompute_;
  torch::ScalarType compute_type_;
  torch::Tensor causal_mask_;  // {context, context}: 0 on and below the diagonal, -inf above
  std::vector<ModelParameter> parameters_;
  std::vector<ModelUnit> units_;
};

// The samples of one micro-batch: `count` from index `first` of the step's global batch.
Batch SampleBatch(const Corpus& corpus, const Options& options, int64_t step, int64_t first);

// Threads of torch and of the BLAS library below it.
void SetComputeThreads(int threads);

}  // namespace zerohold::train
