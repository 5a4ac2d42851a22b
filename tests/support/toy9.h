// TOY-9 of the cases: nine elements with one decayed and one plain group, twelve samples a step,
// the same each step. Its values after five steps come from a float64 oracle that torch agrees
// with.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "tests/support/trainer.h"

namespace zerohold::testing {

struct Toy9 {
  static constexpr int kSamples = 12;
  static constexpr std::array kValues = {-0.0874109, -0.0423779, 0.0496502, 0.1454818, 0.2417196,
                                         0.3504106,  0.4498660,  0.5496066, 0.6494914};
  static constexpr std::array kNorms = {1.7195911, 1.5859524, 1.4563096, 1.3314719, 1.2118711};

  // Tensors w(5), b(3) and s(1); w decays.
  static ModelSpec Model() {
    return {{{"w", {5}, DType::kFloat32, 0},
             {"b", {3}, DType::kFloat32, 1},
             {"s", {1}, DType::kFloat32, 1}},
            {{"weights", {"w"}, {}}, {"rest", {"b", "s"}, {}}}};
  }
  static EngineOptions Options(EngineOptions options) {
    options.groups = {{.learning_rate = 0.05, .weight_decay = 0.1}, {.learning_rate = 0.05}};
    options.clip_grad_norm = 1.0;
    return options;
  }

  struct Result {
    std::vector<float> values;
    std::vector<double> norms;
  };

  // `model` cuts the nine elements into tensors in any way; each rank takes its share of the
  // samples, as `micro_batches` micro-batches. Requires: ranks times micro_batches divide 12.
  static Result Train(const EngineOptions& options, const Communicator& ranks,
                      const ModelSpec& model, int micro_batches, int steps = 5) {
    std::vector<int> first_element;
    int elements = 0;
    for (const ParameterSpec& spec : model.parameters) {
      first_element.push_back(elements);
      elements += spec.shape.empty() ? 1 : static_cast<int>(spec.shape[0]);
    }
    Trainer trainer(options, ranks, model, [&](ParameterId id, int64_t i) {
      return static_cast<float>(0.1 * static_cast<double>(first_element[id] + i + 1));
    });
    const int share = kSamples / ranks.size() / micro_batches;
    Result result;
    for (int step = 0; step < steps; ++step) {
      for (int batch = 0; batch < micro_batches; ++batch) {
        const int sample = (ranks.rank() * micro_batches + batch) * share;
        const auto gradient = [&](ParameterId id, std::span<const float> values,
                                  std::span<float> out) {
          for (size_t i = 0; i < out.size(); ++i) {
            const int element = first_element[id] + static_cast<int>(i);
            double sines = 0.0;
            for (int j = sample; j < sample + share; ++j) sines += std::sin(element + 1 + 0.5 * j);
            out[i] += static_cast<float>(values[i] - sines / share);
          }
        };
        trainer.MicroBatch(gradient, batch + 1 == micro_batches);
      }
      result.norms.push_back(trainer.Step().grad_norm);
    }
    result.values = trainer.ReadAll();
    EXPECT_TRUE(trainer.engine().Close().ok());
    return result;
  }

  static void Check(const Result& result) {
    ASSERT_EQ(result.values.size(), kValues.size());
    for (size_t i = 0; i < kValues.size(); ++i) EXPECT_NEAR(result.values[i], kValues[i], 2e-6);
    ASSERT_EQ(result.norms.size(), kNorms.size());
    for (size_t i = 0; i < kNorms.size(); ++i) EXPECT_NEAR(result.norms[i], kNorms[i], 1e-5);
  }
};

}  // namespace zerohold::testing
