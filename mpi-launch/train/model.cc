#include "mpi-launch/train/model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "mpi-launch/blas.h"
#include "mpi-launch/train/recompute.h"

namespace zerohold::train {
namespace {

using torch::Tensor;

constexpr int64_t kVocabulary = 256;  // bytes
constexpr double kDeviation = 0.02;   // of GPT-2's first weights

// A block's parameters, in the order in which they lie in memory and in which Block reads them.
enum BlockPart {
  kNorm1,
  kNorm1Bias,
  kQkv,
  kQkvBias,
  kOut,
  kOutBias,
  kNorm2,
  kNorm2Bias,
  kUp,
  kUpBias,
  kDown,
  kDownBias
};

std::vector<ModelParameter> BlockParameters(const std::string& unit, const Options& options) {
  const int64_t w = options.width;
  // The sum of 2 x layers residual branches keeps the size of one.
  const double branch = kDeviation / std::sqrt(2.0 * static_cast<double>(options.layers));
  return {
      {unit + ".norm1.weight", {w}, 1, 0},
      {unit + ".norm1.bias", {w}, 0, 0},
      {unit + ".attention.qkv.weight", {3 * w, w}, 0, kDeviation},
      {unit + ".attention.qkv.bias", {3 * w}, 0, 0},
      {unit + ".attention.out.weight", {w, w}, 0, branch},
      {unit + ".attention.out.bias", {w}, 0, 0},
      {unit + ".norm2.weight", {w}, 1, 0},
      {unit + ".norm2.bias", {w}, 0, 0},
      {unit + ".mlp.up.weight", {4 * w, w}, 0, kDeviation},
      {unit + ".mlp.up.bias", {4 * w}, 0, 0},
      {unit + ".mlp.down.weight", {w, 4 * w}, 0, branch},
      {unit + ".mlp.down.bias", {w}, 0, 0},
  };
}

// Torch has no half kernels for CPUs. Its bf16 products are oneDNN's, which takes AVX-512; without,
// they are plain loops and take fifty times as long as in fp32.
torch::ScalarType ComputeType(const Options& options) {
  const bool fast = at::globalContext().hasMKLDNN() && launch::HasAvx512();
  const bool bf16 = options.WeightType() == DType::kBFloat16 && options.compute_dtype == "auto";
  return bf16 && fast ? torch::kBFloat16 : torch::kFloat32;
}

}  // namespace

Model::Model(const Options& options)
    : heads_(options.heads),
      width_(options.width),
      recompute_(options.recompute),
      compute_type_(ComputeType(options)) {
  const int64_t context = options.context;
  causal_mask_ = torch::full({context, context}, -std::numeric_limits<float>::infinity())
                     .triu(1)
                     .to(compute_type_);
  AddUnit("embedding", {{"embedding.tokens", {kVocabulary, width_}, 0, kDeviation},
                        {"embedding.positions", {context, width_}, 0, kDeviation}});
  for (int64_t layer = 0; layer < options.layers; ++layer) {
    const std::string name = "block." + std::to_string(layer);
    AddUnit(name, BlockParameters(name, options));
  }
  AddUnit("final", {{"final.norm.weight", {width_}, 1, 0}, {"final.norm.bias", {width_}, 0, 0}},
          {"embedding.tokens"});
}

void Model::AddUnit(const std::string& name, std::vector<ModelParameter> parameters,
                    std::vector<std::string> uses) {
  units_.push_back({name, parameters_.size(), parameters.size(), std::move(uses)});
  std::move(parameters.begin(), parameters.end(), std::back_inserter(parameters_));
}

int64_t Model::elems() const {
  int64_t elems = 0;
  for (const ModelParameter& p : parameters_) {
    elems += std::accumulate(p.shape.begin(), p.shape.end(), int64_t{1}, std::multiplies<>());
  }
  return elems;
}

std::vector<size_t> Model::OrderByName() const {
  std::vector<size_t> order(parameters_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [this](size_t a, size_t b) { return parameters_[a].name < parameters_[b].name; });
  return order;
}

void Model::Initialize(size_t parameter, uint64_t seed, Tensor values) const {
  const torch::NoGradGuard no_graph;
  const ModelParameter& p = parameters_[parameter];
  // A generator for each parameter: the values do not depend on the order of the calls.
  at::Generator generator = at::detail::createCPUGenerator(seed * 1'000'003 + parameter);
  if (p.deviation == 0) {
    values.fill_(p.mean);
  } else {  // drawn in fp32, so that those of 16 bits are its roundings
    values.copy_(torch::empty(p.shape).normal_(p.mean, p.deviation, generator));
  }
}

Tensor Model::Embed(Weights w, const Tensor& tokens) const {
  return torch::embedding(w[0], tokens) + w[1];
}

Tensor Model::Attention(Weights w, const Tensor& x) const {
  const int64_t samples = x.size(0), context = x.size(1), head_width = width_ / heads_;
  const Tensor qkv = torch::linear(x, w[kQkv], w[kQkvBias])
                         .view({samples, context, 3, heads_, head_width})
                         .permute({2, 0, 3, 1, 4});  // {3, samples, heads, context, head width}
  const Tensor query = qkv[0] * (1.0 / std::sqrt(static_cast<double>(head_width)));
  const Tensor scores = torch::matmul(query, qkv[1].transpose(-2, -1)) + causal_mask_;
  const Tensor mixed = torch::matmul(torch::softmax(scores, -1), qkv[2]);
  return torch::linear(mixed.transpose(1, 2).reshape({samples, context, width_}), w[kOut],
                       w[kOutBias]);
}

Tensor Model::Block(Weights w, const Tensor& input) const {
  const Tensor x =
      input + Attention(w, torch::layer_norm(input, {width_}, w[kNorm1], w[kNorm1Bias]));
  const Tensor up =
      torch::linear(torch::layer_norm(x, {width_}, w[kNorm2], w[kNorm2Bias]), w[kUp], w[kUpBias]);
  return x + torch::linear(torch::gelu(up), w[kDown], w[kDownBias]);
}

Tensor Model::Head(Weights w, const Tensor& tied, const Tensor& x, const Tensor& targets) const {
  const Tensor logits = torch::linear(torch::layer_norm(x, {width_}, w[0], w[1]), tied);
  return torch::cross_entropy_loss(logits.view({-1, kVocabulary}).to(torch::kFloat32),
                                   targets.view({-1}));
}

Tensor Model::Loss(const std::vector<Tensor>& weights, const Batch& batch,
                   UnitObserver& observer) const {
  const int last = static_cast<int>(units_.size()) - 1;
  Tensor x = batch.tokens;
  for (int unit = 0; unit <= last; ++unit) {
    const Weights w(weights.data() + units_[unit].first, units_[unit].count);
    observer.BeforeForward(unit);
    if (unit == 0) {
      x = Embed(w, x);
    } else if (unit == last) {
      x = Head(w, weights[0], x, batch.targets);
    } else if (recompute_) {
      x = Recompute([this, w](const Tensor& input) { return Block(w, input); }, x);
    } else {
      x = Block(w, x);
    }
    observer.AfterForward(unit);
    if (!x.requires_grad()) continue;  // no backward pass follows
    x.register_hook([&observer, unit](const Tensor&) { observer.BeforeBackward(unit); });
  }
  return x;
}

Batch SampleBatch(const Corpus& corpus, const Options& options, int64_t step, int64_t first) {
  const int64_t window = options.context + 1;
  Tensor bytes = torch::empty({options.micro_batch, window}, torch::kInt64);
  int64_t* out = bytes.data_ptr<int64_t>();
  for (int64_t sample = 0; sample < options.micro_batch; ++sample) {
    const int64_t begin = corpus.WindowBegin(options.seed, step, first + sample, window);
    out = std::transform(corpus.bytes().begin() + begin, corpus.bytes().begin() + begin + window,
                         out, [](char c) { return static_cast<unsigned char>(c); });
  }
  return {bytes.slice(1, 0, window - 1), bytes.slice(1, 1, window).contiguous()};
}

void SetComputeThreads(int threads) {
  at::set_num_threads(threads);
  launch::SetBlasThreads(threads);
}

}  // namespace zerohold::train
