// Adasum as an operation: each tensor is combined separately, however it travels.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "capi/world.h"

namespace perseus::test {
namespace {

class Adasum : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, Adasum, testing::Values(1, 2, 3, 4, 5));

// Orthogonal gradients do not disturb each other: they are added.
TEST_P(Adasum, AddsWhatIsOrthogonal) {
  World(GetParam()).run([](int rank) {
    const std::vector<int64_t> shape = {perseus_size()};
    std::vector<float> data(perseus_size(), 0.0f);
    data[rank] = 2.0f;
    Submission adasum(PERSEUS_ALLREDUCE, "orthogonal");
    adasum.raw.reduce_op = PERSEUS_ADASUM;
    adasum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
    REQUIRE(adasum.run() == PERSEUS_OK);
    for (float value : data) REQUIRE(value == 2.0f);
  });
}

// Gradients of one direction are averaged. They are merged with tensors in which every rank has its
// own direction, and one of them is larger than a shard.
TEST_P(Adasum, AveragesWhatIsParallelTensorByTensor) {
  World(GetParam(), {{"PERSEUS_ALLREDUCE_SHARD", "0.0625"}}).run([](int rank) {
    constexpr int kTensors = 20;
    const std::vector<int64_t> small = {33}, large = {300'000};
    std::vector<std::vector<double>> data(kTensors, std::vector<double>(33));
    data.emplace_back(large[0]);
    for (int step = 0; step < 3; ++step) {
      Submission adasum(PERSEUS_ALLREDUCE, "parallel");
      adasum.raw.reduce_op = PERSEUS_ADASUM;
      adasum.raw.prescale = 0.5;
      adasum.raw.postscale = 4.0;
      for (int t = 0; t <= kTensors; ++t) {
        std::fill(data[t].begin(), data[t].end(), t + 1.0);
        if (t % 2 == 1) {
          std::fill(data[t].begin(), data[t].end(), 0.0);
          data[t][rank] = t + 1.0;
        }
        adasum.tensor(data[t].data(), data[t].data(), t < kTensors ? small : large,
                      PERSEUS_FLOAT64);
      }
      REQUIRE(adasum.run() == PERSEUS_OK);
      for (int t = 0; t <= kTensors; ++t) {
        for (size_t i = 0; i < data[t].size(); ++i) {
          const bool is_zero = t % 2 == 1 && i >= static_cast<size_t>(perseus_size());
          REQUIRE(std::abs(data[t][i] - (is_zero ? 0 : 2.0 * (t + 1))) < 1e-9);
        }
      }
    }
  });
}

// A rank that has joined adds nothing, and takes nothing away.
TEST_P(Adasum, GoesOnWithoutThoseWhoHaveJoined) {
  World(GetParam()).run([](int rank) {
    const std::vector<int64_t> shape = {10, 100};
    std::vector<float> data(1000, 3.0f);
    if (rank == 0) {
      Submission adasum(PERSEUS_ALLREDUCE, "alone");
      adasum.raw.reduce_op = PERSEUS_ADASUM;
      adasum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
      REQUIRE(adasum.run() == PERSEUS_OK);
      for (float value : data) REQUIRE(value == 3.0f);
    }
    REQUIRE(Submission(PERSEUS_JOIN, "join").run() == PERSEUS_OK);
  });
}

TEST_P(Adasum, OfIntegersIsRefusedOnEveryRank) {
  World(GetParam()).run([](int) {
    const std::vector<int64_t> shape = {10};
    std::vector<int32_t> data(10, 1);
    Submission adasum(PERSEUS_ALLREDUCE, "integers");
    adasum.raw.reduce_op = PERSEUS_ADASUM;
    adasum.tensor(data.data(), data.data(), shape, PERSEUS_INT32);
    REQUIRE(adasum.run() == PERSEUS_UNSUPPORTED);
    REQUIRE(std::string(perseus_last_error()).find("floating") != std::string::npos);
  });
}

}  // namespace
}  // namespace perseus::test
