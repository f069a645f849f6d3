// An average is finite where its inputs are, though their sum may not be.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "capi/world.h"

namespace perseus::test {
namespace {

constexpr uint16_t k60000 = 0x7b53;  // as a float16; the largest is 65504

class AverageOfHalves : public testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Ranks, AverageOfHalves, testing::Values(1, 2, 3, 4));

TEST_P(AverageOfHalves, OfAllreduceIsThatOfNumbersNearTheLargest) {
  World(GetParam()).run([](int) {
    for (int64_t elements : {3, 100'000}) {
      const std::vector<int64_t> shape = {elements};
      for (size_t tensors : {1, 2}) {
        std::vector<std::vector<uint16_t>> data(tensors, std::vector<uint16_t>(elements, k60000));
        Submission average(PERSEUS_ALLREDUCE, "average");
        average.raw.reduce_op = PERSEUS_AVERAGE;
        for (auto& tensor : data) {
          average.tensor(tensor.data(), tensor.data(), shape, PERSEUS_FLOAT16);
        }
        REQUIRE(average.run() == PERSEUS_OK);
        for (const auto& tensor : data) {
          for (uint16_t value : tensor) REQUIRE(value == k60000);
        }
      }
    }
  });
}

TEST_P(AverageOfHalves, OfReduceScatterIsThatOfNumbersNearTheLargest) {
  World(GetParam()).run([](int) {
    const std::vector<int64_t> shape = {24, 100};
    const std::vector<uint16_t> data(2400, k60000);
    Submission average(PERSEUS_REDUCESCATTER, "average");
    average.raw.reduce_op = PERSEUS_AVERAGE;
    const perseus_handle_t handle =
        average.tensor(data.data(), nullptr, shape, PERSEUS_FLOAT16).submit();
    const perseus_result_t result = wait_for_result(handle);
    const auto* values = static_cast<const uint16_t*>(result.data);
    for (int64_t i = 0; i < result.shape[0] * 100; ++i) REQUIRE(values[i] == k60000);
    perseus_release(handle);
  });
}

}  // namespace
}  // namespace perseus::test
