// What must not change the result: stage, world, micro-batches, buckets, overlap, by the ids of the
// cases.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/ranks.h"
#include "tests/support/toy9.h"
#include "tests/support/trainer.h"
#include "zerohold/mpi.h"

namespace zerohold::testing {
namespace {

TEST(NumericsCases, NUM_34) {
  RunStages({1, 2, 3, 4, 6, 12}, [](const EngineOptions& options, int, Communicator ranks) {
    for (const int micro_batches : {1, 2, 3}) {
      if (Toy9::kSamples % (ranks.size() * micro_batches) != 0) continue;
      SCOPED_TRACE("micro-batches " + std::to_string(micro_batches));
      Toy9::Check(Toy9::Train(Toy9::Options(options), ranks, Toy9::Model(), micro_batches));
    }
  });
}

// Without a launcher there is a world of one, with MPI or without.
TEST(CommunicationCases, COM_10) {
  for (const int stage : {0, 1}) {
    Toy9::Check(
        Toy9::Train(Toy9::Options(OptionsOfStage(stage)), SelfCommunicator(), Toy9::Model(), 2));
  }
  const StatusOr<MpiSession> session = MpiSession::Start();
  ASSERT_TRUE(session.ok()) << session.status();
  const StatusOr<Communicator> world = MpiCommunicator(MPI_COMM_WORLD);
  ASSERT_TRUE(world.ok()) << world.status();
  EXPECT_EQ(world->size(), 1);
  for (const int stage : {0, 1}) {
    Toy9::Check(Toy9::Train(Toy9::Options(OptionsOfStage(stage)), *world, Toy9::Model(), 2));
  }
}

// Plain arithmetic of rank, step, parameter and element.
GradientFunction Waves(int rank, int step) {
  return [=](ParameterId id, std::span<const float> values, std::span<float> gradient) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      const auto phase = static_cast<float>((i * 31 + id * 17 + rank * 7 + step * 5) % 101);
      gradient[i] += 0.1f * values[i] + 0.03f * (phase - 50.0f);
    }
  };
}

// Values after each of three steps, and the reduced gradient of the last.
std::vector<float> TrainBuckets(EngineOptions options, const Communicator& ranks, bool overlap) {
  options.clip_grad_norm = 1.0;
  Trainer trainer(options, ranks, Tensors({64, 4096, 100}), Constant(0.5f));
  std::vector<float> all;
  for (int step = 0; step < 3; ++step) {
    // Without a last micro-batch, reductions start in Step.
    trainer.MicroBatch(Waves(ranks.rank(), step), overlap);
    trainer.Step();
    const std::vector<float> values = trainer.ReadAll();
    all.insert(all.end(), values.begin(), values.end());
  }
  const std::vector<float> gradient = trainer.ReadAll(StateKind::kGradient);
  all.insert(all.end(), gradient.begin(), gradient.end());
  return all;
}

// A bucket as large as a tensor, larger by one, smaller than any, larger than all.
TEST(NumericsCases, NUM_36) {
  constexpr int kWorld = 3;
  std::vector<std::vector<float>> reference(kWorld);
  RunRanks(kWorld, [&](int rank, Communicator ranks) {
    reference[rank] = TrainBuckets(OptionsOfStage(0), ranks, false);
  });
  for (const float value : reference[0]) ASSERT_TRUE(std::isfinite(value));
  for (int rank = 1; rank < kWorld; ++rank) ASSERT_EQ(reference[rank], reference[0]);
  RunStages({kWorld}, [&](EngineOptions options, int, Communicator ranks) {
    for (int repeat = 0; repeat < 20; ++repeat) {
      for (const int64_t bucket : {64, 256, 4096, 4097, 4260, 1000000}) {
        for (const bool overlap : {false, true}) {
          options.bucket_elems = bucket;
          ASSERT_EQ(TrainBuckets(options, ranks, overlap), reference[0])
              << "bucket " << bucket << " overlap " << overlap << " repeat " << repeat;
        }
      }
    }
  });
}

// The order in which units report does not change the result, nor does it have to be the same on
// all ranks.
TEST(NumericsCases, NUM_36_UnitsReportInAnyOrder) {
  const auto train = [](const EngineOptions& options, const Communicator& ranks,
                        const std::vector<UnitId>& order) {
    Trainer trainer(options, ranks, TensorsInUnits({300, 1000, 20, 600}), Constant(0.5f));
    for (int step = 0; step < 3; ++step) {
      EXPECT_TRUE(trainer.engine().BeginMicroBatch().ok());
      for (const UnitId unit : order) trainer.Backward(unit, Waves(ranks.rank(), step));
      trainer.Step();
    }
    return trainer.ReadAll();
  };
  RunStages({2, 3}, [&](EngineOptions options, int rank, Communicator ranks) {
    options.bucket_elems = 256;
    options.check_collective_order = true;
    options.max_live_gradients_bytes = int64_t{8} << 20;  // all units: who waits keeps its frame
    const std::vector<float> expected = train(options, ranks, {3, 2, 1, 0});
    std::vector<UnitId> order = {0, 1, 2, 3};
    EXPECT_EQ(train(options, ranks, order), expected);
    if (options.zero_stage == 3) return;  // there an acquire is collective
    std::rotate(order.begin(), order.begin() + rank, order.end());
    EXPECT_EQ(train(options, ranks, order), expected);
  });
}

}  // namespace
}  // namespace zerohold::testing
