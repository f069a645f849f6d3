#include "collectives/adasum.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "collectives/loopback.h"
#include "device/cpu/kernels.h"

namespace perseus {
namespace {

using Vector = std::vector<double>;

Vector adasum_of_two(const Vector& a, const Vector& b, const std::vector<uint64_t>& tensors) {
  Vector sum(a.size());
  size_t begin = 0;
  for (uint64_t elements : tensors) {
    double dot = 0, aa = 0, bb = 0;
    for (size_t i = begin; i < begin + elements; ++i) {
      dot += a[i] * b[i];
      aa += a[i] * a[i];
      bb += b[i] * b[i];
    }
    const double of_a = aa == 0 ? 1 : 1 - dot / (2 * aa);
    const double of_b = bb == 0 ? 1 : 1 - dot / (2 * bb);
    for (size_t i = begin; i < begin + elements; ++i) sum[i] = of_a * a[i] + of_b * b[i];
    begin += elements;
  }
  return sum;
}

Vector reference(std::vector<Vector> blocks, const std::vector<uint64_t>& tensors) {
  const size_t power = std::bit_floor(blocks.size());
  const size_t pairs = blocks.size() - power;
  for (size_t i = 0; i < pairs; ++i) {
    blocks[i] = adasum_of_two(blocks[i], blocks[i + 1], tensors);
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(i) + 1);
  }
  while (blocks.size() > 1) {
    std::vector<Vector> next;
    for (size_t i = 0; i < blocks.size(); i += 2) {
      next.push_back(adasum_of_two(blocks[i], blocks[i + 1], tensors));
    }
    blocks = std::move(next);
  }
  return blocks.front();
}

struct Type {
  DataType type;
  double tolerance;  // relative to the largest element
};

class AdasumOfType : public testing::TestWithParam<Type> {};

TEST_P(AdasumOfType, EqualsTheReferenceAtAnyNumberOfRanks) {
  const auto [type, tolerance] = GetParam();
  const std::vector<std::vector<uint64_t>> sizes = {
      {1}, {2, 0, 3}, {1000}, {17, 1, 64, 300, 5000}, std::vector<uint64_t>(100, 3)};
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (const std::vector<uint64_t>& tensors : sizes) {
      const auto elements = std::accumulate(tensors.begin(), tensors.end(), uint64_t{0});
      LoopbackWorld world({ranks}, 11);
      std::mt19937 random(ranks);
      std::normal_distribution<double> normal(0.3, 1.0);
      std::vector<Vector> inputs(ranks, Vector(elements));
      std::vector<std::vector<std::byte>> data;
      for (Vector& input : inputs) {
        for (double& value : input) value = normal(random);
        auto& mine = data.emplace_back(elements * size_of(type));
        convert(mine.data(), type, input.data(), DataType::kFloat64, elements);
        convert(input.data(), DataType::kFloat64, mine.data(), type, elements);
      }
      std::vector<Task> tasks;
      for (int rank = 0; rank < ranks; ++rank) {
        tasks.push_back(
            adasum(world.group(rank), world.options(1), data[rank].data(), tensors, type));
      }
      for (const Status& status : world.run(std::move(tasks))) {
        ASSERT_TRUE(status.is_ok()) << status.message();
      }
      ASSERT_EQ(world.violations(), std::vector<std::string>());
      const Vector expected = reference(inputs, tensors);
      double largest = 0;
      for (double value : expected) largest = std::max(largest, std::abs(value));
      Vector result(elements);
      convert(result.data(), DataType::kFloat64, data[0].data(), type, elements);
      for (size_t i = 0; i < elements; ++i) {
        ASSERT_NEAR(result[i], expected[i], tolerance * largest) << ranks << " ranks, " << i;
      }
      for (int rank = 1; rank < ranks; ++rank) {
        ASSERT_EQ(data[rank], data[0]) << "the same bits on rank " << rank << " of " << ranks;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, AdasumOfType,
                         testing::Values(Type{DataType::kFloat16, 1e-3},
                                         Type{DataType::kBfloat16, 8e-3},
                                         Type{DataType::kFloat32, 1e-6},
                                         Type{DataType::kFloat64, 1e-14}),
                         [](const auto& info) { return std::string(to_string(info.param.type)); });

TEST(Adasum, AddsWhatIsOrthogonalAveragesWhatIsEqualAndKeepsWhatMeetsZero) {
  LoopbackWorld world({4}, 3);
  const std::vector<uint64_t> tensors = {4, 2, 2};
  std::vector<std::vector<float>> data(4, std::vector<float>(8, 0.0f));
  for (int rank = 0; rank < 4; ++rank) {
    data[rank][rank] = 3.0f;                  // orthogonal
    data[rank][4] = 5.0f;                     // equal
    data[rank][6] = rank == 2 ? 7.0f : 0.0f;  // zero except on one rank
  }
  std::vector<Task> tasks;
  for (int rank = 0; rank < 4; ++rank) {
    tasks.push_back(adasum(world.group(rank), world.options(1), data[rank].data(), tensors,
                           DataType::kFloat32));
  }
  for (const Status& status : world.run(std::move(tasks))) ASSERT_TRUE(status.is_ok());
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(data[rank], (std::vector<float>{3, 3, 3, 3, 5, 0, 7, 0})) << rank;
  }
}

TEST(Adasum, ALostRankEndsItOnAll) {
  for (int messages = 0; messages < 12; ++messages) {
    LoopbackWorld world({5}, 3);
    world.fail_after(messages, Status::aborted("rank 3 is gone"));
    const std::vector<uint64_t> tensors = {100};
    std::vector<std::vector<float>> data(5, std::vector<float>(100, 1.0f));
    std::vector<Task> tasks;
    for (int rank = 0; rank < 5; ++rank) {
      tasks.push_back(adasum(world.group(rank), world.options(1), data[rank].data(), tensors,
                             DataType::kFloat32));
    }
    for (const Status& status : world.run(std::move(tasks))) {
      EXPECT_EQ(status.code(), StatusCode::kAborted) << messages;
    }
  }
}

}  // namespace
}  // namespace perseus
