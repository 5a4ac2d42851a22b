// The suite itself: values, whatever the transport. More of sums, failures and twins are in the
// files beside it.
#include "tests/src/comm/conformance.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/base/norm_bins.h"
#include "tests/src/comm/addends.h"

namespace zerohold::comm {
namespace {

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
constexpr int64_t kSizes[] = {0, 1, 7, 256, 1009, 3001};

// One reduction, its result and its norm against the plainest code.
void CheckReduceScatter(Communicator& communicator, DType dtype,
                        std::span<const layout::Range> shards, bool in_place) {
  const layout::Range own = shards[communicator.rank()];
  const int64_t begin_bytes = own.begin * SizeOf(dtype);
  const int64_t own_bytes = own.size() * SizeOf(dtype);
  const std::vector<std::byte> addends = Addends(communicator.rank(), dtype, shards.back().end);
  std::vector<std::byte> bucket = addends;
  std::vector<std::byte> elsewhere(own_bytes);
  const std::vector<std::byte> scratch = Scratch(communicator, shards, dtype);
  std::byte* out = in_place ? bucket.data() + begin_bytes : elsewhere.data();
  constexpr float kDivisor = 3.0f;
  constexpr double kNormWeight = 0.5;
  base::NormBins norm;
  ASSERT_EQ(
      communicator.ReduceScatter({.verb = "ReduceScatter"}, {.addends = bucket.data(),
                                                             .dtype = dtype,
                                                             .shards = shards,
                                                             .mean = {.out = out,
                                                                      .dtype = dtype,
                                                                      .rounded_to = dtype,
                                                                      .divisor = kDivisor,
                                                                      .norm = &norm,
                                                                      .norm_weight = kNormWeight}}),
      absl::OkStatus());

  std::vector<std::byte> expected =
      NaiveMean(communicator.size(), dtype, own.begin, own.end, kDivisor);
  EXPECT_TRUE(SameBits({out, static_cast<size_t>(own_bytes)}, expected));
  std::vector<float> widened(own.size());
  for (int64_t i = 0; i < own.size(); ++i) widened[i] = Get(dtype, expected.data(), i);
  base::NormBins expected_norm;
  expected_norm.Add(widened.data(), own.size(), kNormWeight);
  EXPECT_TRUE(std::ranges::equal(norm.bins(), expected_norm.bins()));
  // Nothing but the own place has changed.
  if (in_place) std::ranges::copy_n(addends.data() + begin_bytes, own_bytes, out);
  EXPECT_TRUE(SameBits(bucket, addends));
}

TEST_P(CommunicatorConformance, ReduceScatterIsTheTreeSumInBits) {
  Run([](Communicator& communicator) {
    for (const DType dtype : kDTypes) {
      for (const int64_t elems : kSizes) {
        for (const bool uneven : {false, true}) {
          SCOPED_TRACE(testing::Message() << NameOf(dtype) << " " << elems << " uneven " << uneven);
          const auto shards = Shards(communicator.size(), elems, uneven);
          CheckReduceScatter(communicator, dtype, shards, /*in_place=*/false);
          CheckReduceScatter(communicator, dtype, shards, /*in_place=*/true);
        }
      }
    }
  });
}

// More ranks than shards with elements in them.
TEST_P(CommunicatorConformance, PAR_02_RanksWithoutElements) {
  Run([](Communicator& communicator) {
    std::vector<layout::Range> shards(communicator.size(), layout::Range{256, 256});
    shards[0] = {0, 256};
    CheckReduceScatter(communicator, DType::kFloat32, shards, /*in_place=*/true);
    int64_t value = communicator.rank() == 0 ? 42 : 0;
    const Piece pieces[] = {{0, 0, sizeof(value)}};
    ASSERT_EQ(communicator.AllGather({.verb = "AllGather"}, &value, pieces), absl::OkStatus());
    EXPECT_EQ(value, 42);
    ASSERT_EQ(communicator.AllGather({.verb = "AllGather"}, &value, {}), absl::OkStatus());
  });
}

// fp16: the sum of large values does not overflow, the mean of tiny ones does not vanish.
TEST_P(CommunicatorConformance, NUM_30) {
  Run([](Communicator& communicator) {
    for (const float value : {30000.0f, 0x1p-24f}) {
      const auto shards = Shards(communicator.size(), 256, false);
      std::vector<uint16_t> addends(shards.back().end, base::FloatToFloat16(value));
      std::vector<uint16_t> mean(256);
      const std::vector<std::byte> scratch = Scratch(communicator, shards, DType::kFloat16);
      base::NormBins norm;
      ASSERT_EQ(
          communicator.ReduceScatter({.verb = "ReduceScatter"},
                                     {.addends = addends.data(),
                                      .dtype = DType::kFloat16,
                                      .shards = shards,
                                      .mean = {.out = mean.data(),
                                               .dtype = DType::kFloat16,
                                               .rounded_to = DType::kFloat16,
                                               .divisor = static_cast<float>(communicator.size()),
                                               .norm = &norm}}),
          absl::OkStatus());
      for (const uint16_t bits : mean) ASSERT_EQ(base::Float16ToFloat(bits), value);
      EXPECT_FALSE(norm.nonfinite());
      EXPECT_NEAR(norm.Norm(), 16.0 * value, 1e-6 * 16.0 * value);
    }
  });
}

TEST_P(CommunicatorConformance, ANonFiniteAddendReachesTheNorm) {
  Run([](Communicator& communicator) {
    const auto shards = Shards(communicator.size(), 256, false);
    std::vector<float> addends(shards.back().end, 1.0f);
    if (communicator.rank() == communicator.size() - 1) addends[3] = INFINITY;
    std::vector<float> mean(256);
    const std::vector<std::byte> scratch = Scratch(communicator, shards, DType::kFloat32);
    base::NormBins norm;
    ASSERT_EQ(communicator.ReduceScatter({.verb = "ReduceScatter"},
                                         {.addends = addends.data(),
                                          .shards = shards,
                                          .mean = {.out = mean.data(), .norm = &norm}}),
              absl::OkStatus());
    EXPECT_EQ(norm.nonfinite(), communicator.rank() == 0);  // element 3 is in its shard
  });
}

// Byte `i` of what `owner` brings.
std::byte ByteOf(int owner, int64_t i) { return static_cast<std::byte>(Mixed(owner + 1, i)); }

TEST_P(CommunicatorConformance, AllGatherFillsEveryPiece) {
  Run([](Communicator& communicator) {
    const int world = communicator.size();
    for (const int64_t bytes : kSizes) {
      // Two rounds over the ranks, backwards, with gaps; the last rank has no piece in the second.
      std::vector<Piece> pieces;
      int64_t offset = 5;
      for (int k = 2 * world - 1; k > 0; --k) {
        pieces.push_back({k % world, offset, bytes + k % 2});
        offset += bytes + 3;
      }
      constexpr std::byte kUntouched{0xa5};
      std::vector<std::byte> buffer(offset, kUntouched);
      std::vector<std::byte> expected = buffer;
      for (const Piece& piece : pieces) {
        for (int64_t i = piece.offset_bytes; i < piece.offset_bytes + piece.bytes; ++i) {
          expected[i] = ByteOf(piece.rank, i);
          if (piece.rank == communicator.rank()) buffer[i] = expected[i];
        }
      }
      ASSERT_EQ(communicator.AllGather({.verb = "AllGather"}, buffer.data(), pieces),
                absl::OkStatus());
      EXPECT_TRUE(SameBits(buffer, expected)) << bytes;
    }
  });
}

TEST_P(CommunicatorConformance, BroadcastFromEveryRoot) {
  Run([](Communicator& communicator) {
    for (int root = 0; root < communicator.size(); ++root) {
      for (const int64_t bytes : kSizes) {
        std::vector<std::byte> buffer(bytes);
        std::vector<std::byte> expected(bytes);
        for (int64_t i = 0; i < bytes; ++i) {
          buffer[i] = ByteOf(communicator.rank(), i);
          expected[i] = ByteOf(root, i);
        }
        ASSERT_EQ(communicator.Broadcast({.verb = "Broadcast"}, buffer.data(), bytes, root),
                  absl::OkStatus());
        EXPECT_TRUE(SameBits(buffer, expected));
      }
    }
  });
}

TEST_P(CommunicatorConformance, AllReduceOrsMaximisesAndAdds) {
  Run([](Communicator& communicator) {
    const int64_t world = communicator.size();
    const int64_t rank = communicator.rank();
    for (int round = 0; round < 3; ++round) {
      int64_t bits[] = {int64_t{1} << rank, 0};
      int64_t maxima[] = {-rank, rank, INT64_MIN};
      int64_t sums[] = {rank + 1, -1, INT64_MAX / world};
      ASSERT_EQ(communicator.AllReduce({.verb = "AllReduce"}, bits, maxima, sums),
                absl::OkStatus());
      EXPECT_THAT(bits, testing::ElementsAre((int64_t{1} << world) - 1, 0));
      EXPECT_THAT(maxima, testing::ElementsAre(0, world - 1, INT64_MIN));
      EXPECT_THAT(sums,
                  testing::ElementsAre(world * (world + 1) / 2, -world, INT64_MAX / world * world));
      ASSERT_EQ(communicator.AllReduce({.verb = "AllReduce"}, {}, {}, {}), absl::OkStatus());
    }
  });
}

// Messages cut into parts give the bits of whole ones; 2000 elements are whole parts.
TEST_P(CommunicatorConformance, COM_08) {
  Run([](Communicator& communicator) {
    communicator.Configure({.max_message_bytes = 1000 * sizeof(float)});
    for (const int64_t elems : {10007, 2000}) {
      for (const bool uneven : {false, true}) {
        CheckReduceScatter(communicator, DType::kFloat32,
                           Shards(communicator.size(), elems, uneven), /*in_place=*/true);
      }
      const int world = communicator.size();
      const int64_t bytes = elems * static_cast<int64_t>(sizeof(float));
      std::vector<Piece> pieces;
      for (int rank = 0; rank < world; ++rank) pieces.push_back({rank, rank * bytes, bytes});
      std::vector<std::byte> buffer(world * bytes);
      std::vector<std::byte> expected(world * bytes);
      for (int64_t i = 0; i < world * bytes; ++i) {
        expected[i] = ByteOf(static_cast<int>(i / bytes), i);
        if (i / bytes == communicator.rank()) buffer[i] = expected[i];
      }
      ASSERT_EQ(communicator.AllGather({.verb = "AllGather"}, buffer.data(), pieces),
                absl::OkStatus());
      EXPECT_TRUE(SameBits(buffer, expected));
      if (communicator.rank() != world - 1) std::ranges::fill(buffer, std::byte{});
      ASSERT_EQ(communicator.Broadcast({.verb = "Broadcast"}, buffer.data(), bytes, world - 1),
                absl::OkStatus());
      EXPECT_TRUE(SameBits({buffer.data(), static_cast<size_t>(bytes)},
                           {expected.data(), static_cast<size_t>(bytes)}));
      std::vector<int64_t> sums(elems, 1);
      ASSERT_EQ(communicator.AllReduce({.verb = "AllReduce"}, {}, {}, sums), absl::OkStatus());
      EXPECT_THAT(sums, testing::Each(world));
    }
  });
}

TEST_P(CommunicatorConformance, CountsWhatItSends) {
  Run([](Communicator& communicator) {
    telemetry::Counters<Traffic> sent;
    communicator.Configure({.check_order = true, .sent_bytes = &sent});
    const int64_t others = communicator.size() - 1;
    CheckReduceScatter(communicator, DType::kBFloat16, Shards(communicator.size(), 256, false),
                       /*in_place=*/true);
    std::vector<std::byte> buffer(100 * communicator.size());
    std::vector<Piece> pieces;
    for (int rank = 0; rank <= others; ++rank) pieces.push_back({rank, 100 * rank, 100});
    ASSERT_EQ(communicator.AllGather({.verb = "AllGather"}, buffer.data(), pieces),
              absl::OkStatus());
    EXPECT_THAT(sent.Take(), testing::ElementsAre(others * 512, others * 100));
  });
}

TEST_P(CommunicatorConformance, KnowsItsNode) {
  Run([](Communicator& communicator) {
    // All tests run on one machine.
    EXPECT_EQ(communicator.local_rank(), communicator.rank());
    EXPECT_EQ(communicator.local_size(), communicator.size());
    EXPECT_TRUE(communicator.any_thread());
  });
}

}  // namespace
}  // namespace zerohold::comm
