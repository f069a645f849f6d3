#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "collectives/collective.h"
#include "collectives/loopback.h"
#include "reference/reduced.h"

namespace perseus {
namespace {

enum class Place { kApart, kOwnPart, kStartOfInput };

class ReduceScatter : public testing::TestWithParam<Place> {};

std::string place_name(const testing::TestParamInfo<Place>& info) {
  switch (info.param) {
    case Place::kOwnPart: return "own_part";
    case Place::kStartOfInput: return "start_of_input";
    default: return "apart";
  }
}

INSTANTIATE_TEST_SUITE_P(Outputs, ReduceScatter,
                         testing::Values(Place::kApart, Place::kOwnPart, Place::kStartOfInput),
                         place_name);

void check(LoopbackWorld& world, uint64_t operation, DataType type, ReduceOp op,
           const std::vector<uint64_t>& elements_of, Place place) {
  size_t total = 0;
  std::vector<size_t> offsets;
  for (uint64_t elements : elements_of) {
    offsets.push_back(total);
    total += elements;
  }
  const std::vector<Elements> inputs = inputs_of(world.size(), type, total);
  std::vector<Elements> in = inputs, out;
  for (uint64_t elements : elements_of) out.emplace_back(type, elements);
  std::vector<Task> tasks;
  std::vector<const std::byte*> results;
  for (int rank = 0; rank < world.size(); ++rank) {
    auto* input = static_cast<std::byte*>(in[rank].data());
    auto* output = static_cast<std::byte*>(out[rank].data());
    if (place == Place::kOwnPart) output = input + offsets[rank] * size_of(type);
    if (place == Place::kStartOfInput) output = input;
    results.push_back(output);
    tasks.push_back(reduce_scatter(world.group(rank), world.options(operation), input, output,
                                   elements_of, type, op));
  }
  for (const Status& status : world.run(std::move(tasks))) {
    ASSERT_TRUE(status.is_ok()) << status.message();
  }
  ASSERT_EQ(world.violations(), std::vector<std::string>());
  for (int rank = 0; rank < world.size(); ++rank) {
    Elements result(type, elements_of[rank]);
    if (result.size() != 0) {
      std::memcpy(result.data(), results[rank], elements_of[rank] * size_of(type));
    }
    ASSERT_EQ(first_wrong(result, inputs, offsets[rank], type, op, world.size()), result.size())
        << to_string(type) << ", rank " << rank;
    ASSERT_TRUE(in[rank].guards_intact() && out[rank].guards_intact());
  }
}

TEST_P(ReduceScatter, ReducesPartsOfAnySizes) {
  for (const auto& hosts : std::vector<std::vector<int>>{{1}, {2}, {3}, {5}, {8}, {2, 2}}) {
    LoopbackWorld world(hosts, 1);
    uint64_t operation = 0;
    for (size_t scale : {0, 1, 333, 20011}) {
      for (DataType type : {DataType::kFloat32, DataType::kBfloat16, DataType::kInt32}) {
        std::vector<uint64_t> elements_of;
        for (int rank = 0; rank < world.size(); ++rank) {
          elements_of.push_back(scale * ((rank + 1) % 3));
        }
        check(world, ++operation, type, ReduceOp::kSum, elements_of, GetParam());
        check(world, ++operation, type, ReduceOp::kMax, elements_of, GetParam());
      }
    }
  }
}

TEST(ReduceScatterAverage, OfHalvesIsFiniteWhereTheirSumIsNot) {
  constexpr size_t kElements = 1000;
  for (int size : {1, 2, 3, 4}) {
    LoopbackWorld world({size}, 7);
    std::vector<Elements> in, out;
    const std::vector<uint64_t> elements_of(size, kElements);
    for (int rank = 0; rank < size; ++rank) {
      Elements& input = in.emplace_back(DataType::kFloat16, size * kElements);
      for (size_t i = 0; i < input.size(); ++i) {
        input.set(i, 65504 - static_cast<double>((i * 37 + rank * 1009) % 6000));
      }
      out.emplace_back(DataType::kFloat16, kElements);
    }
    std::vector<Task> tasks;
    for (int rank = 0; rank < size; ++rank) {
      tasks.push_back(reduce_scatter(world.group(rank), world.options(1), in[rank].data(),
                                     out[rank].data(), elements_of, DataType::kFloat16,
                                     ReduceOp::kSum, 1.0 / size));
    }
    for (const Status& status : world.run(std::move(tasks))) ASSERT_TRUE(status.is_ok());
    for (int rank = 0; rank < size; ++rank) {
      for (size_t i = 0; i < kElements; ++i) {
        Expected mean =
            expected_reduction(in, DataType::kFloat16, ReduceOp::kSum, rank * kElements + i);
        mean.value /= size;
        mean.magnitude /= size;
        ASSERT_LE(std::abs(out[rank][i] - mean.value),
                  tolerance(DataType::kFloat16, mean, ReduceOp::kSum, 1) * 1.001);
      }
    }
  }
}

TEST_P(ReduceScatter, ReducesPartsOfManyChunks) {
  LoopbackWorld world({3}, 2);
  check(world, 1, DataType::kFloat32, ReduceOp::kSum, {200001, 0, 400003}, GetParam());
  check(world, 2, DataType::kFloat16, ReduceOp::kSum, {200001, 300000, 7}, GetParam());
}

}  // namespace
}  // namespace perseus
