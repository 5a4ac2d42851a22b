// What a trainer tells about its model: parameters, units, and the views it gets back.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace zerohold {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat16 };

// Bytes of one element: 4 or 2.
constexpr int64_t SizeOf(DType dtype) { return dtype == DType::kFloat32 ? 4 : 2; }

// "fp32", "bf16", "fp16".
constexpr const char* NameOf(DType dtype) {
  constexpr const char* kNames[] = {"fp32", "bf16", "fp16"};
  return kNames[static_cast<int>(dtype)];
}

// Index of a parameter, or of a unit, in the list given to Engine::Create.
using ParameterId = int32_t;
using UnitId = int32_t;

// One tensor of the trainer. The list is the same, in the same order, on every rank.
struct ParameterSpec {
  std::string name;            // not empty, unique
  std::vector<int64_t> shape;  // {} is one element (0-d); a 0 in it is an empty tensor
  DType dtype = DType::kFloat32;
  int group = 0;             // index into EngineOptions::groups
  bool frozen = false;       // has a value, but neither gradient nor optimizer state
  double norm_weight = 1.0;  // share in the squared gradient norm, in (0, 1]; 1/copies for replicas
  // Index into the communicators given to Engine::Create: the ranks that hold the same parameter,
  // over which it is sharded and its gradient reduced.
  int communicator = 0;
  // What kMean divides by, besides the micro-batches; 0: the ranks of its communicator. Experts,
  // whose few copies see the tokens of all ranks, give the number of those.
  int mean_ranks = 0;
  // Held, updated and sent as a whole by one rank of its communicator (matrix optimizers need
  // that); ranks without such a parameter are legal. Element-wise rules give the same bits.
  bool atomic = false;
};

// Parameters that are acquired and released together, usually one transformer block. Every
// parameter is in exactly one unit. The backward pass is expected to finish units in the reverse of
// their order in the list; another order is legal and overlaps less.
struct UnitSpec {
  std::string name;                     // not empty, unique
  std::vector<std::string> parameters;  // names, in the order in which they shall lie in memory
  // Parameters of other units that this one uses too (tied): there with it in every mode of
  // Acquire, written by their own unit's kWrite alone. Gradients of both are added in one memory,
  // which the first kBackward of any of them zeroes, and are final when all of them have reported:
  // the unit is reduced with the first of the list that uses it.
  std::vector<std::string> uses;
};

// Memory of one parameter's values or gradient, row-major and dense. The address is a multiple of
// 64 bytes and never changes while the engine lives; `shape` stays valid as long.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  std::span<const int64_t> shape;
  int64_t elems = 0;
};

}  // namespace zerohold
