// perseus.h: memory that is offered for results.
#include <gtest/gtest.h>

#include <vector>

#include "capi/world.h"
#include "perseus/perseus.h"

namespace perseus::test {
namespace {

TEST(OfferedMemory, IsUsedIfTheResultHasItsSize) {
  World(3).run([](int rank) {
    const std::vector<int64_t> shape{2};
    const std::vector<float> input(2, static_cast<float>(rank));
    for (const size_t offered_floats : {6, 5, 7}) {
      std::vector<float> place(7, -1.0f);
      const perseus_memory_t memory{place.data(), offered_floats * sizeof(float)};
      Submission gather(PERSEUS_ALLGATHER, "gather");
      gather.raw.offered = &memory;
      const perseus_handle_t handle =
          gather.tensor(input.data(), nullptr, shape, PERSEUS_FLOAT32).submit();
      const perseus_result_t result = wait_for_result(handle);
      const bool fits = offered_floats == 6;
      REQUIRE((result.data == place.data()) == fits);
      const auto* values = static_cast<const float*>(result.data);
      for (int i = 0; i < 6; ++i) REQUIRE(values[i] == static_cast<float>(i / 2));
      REQUIRE(place[fits ? 6 : 0] == -1.0f);
      void* const taken = perseus_take_result(handle, 0);
      REQUIRE((taken == nullptr) == fits);
      perseus_free(taken);
      perseus_release(handle);
    }
  });
}

TEST(OfferedMemory, MayHoldAnAllgathersInput) {
  World(2).run([](int rank) {
    std::vector<float> place(4, -1.0f);
    place[2 * rank] = place[2 * rank + 1] = static_cast<float>(rank);
    const std::vector<int64_t> shape{2};
    const perseus_memory_t memory{place.data(), 4 * sizeof(float)};
    Submission gather(PERSEUS_ALLGATHER, "gather");
    gather.raw.offered = &memory;
    REQUIRE(gather.tensor(&place[2 * rank], nullptr, shape, PERSEUS_FLOAT32).run() == PERSEUS_OK);
    REQUIRE(place == (std::vector<float>{0, 0, 1, 1}));
  });
}

TEST(OfferedMemory, TakesAnAlltoall) {
  World(2).run([](int rank) {
    const std::vector<float> input(2, static_cast<float>(rank + 1));
    std::vector<float> place(2, -1.0f);
    const std::vector<int64_t> shape{2};
    const perseus_memory_t memory{place.data(), 2 * sizeof(float)};
    Submission exchange(PERSEUS_ALLTOALL, "exchange");
    exchange.raw.offered = &memory;
    REQUIRE(exchange.tensor(input.data(), nullptr, shape, PERSEUS_FLOAT32).run() == PERSEUS_OK);
    REQUIRE(place == (std::vector<float>{1, 2}));
  });
}

TEST(OfferedMemory, IsForResultsOfUnknownSizeOnly) {
  World(1).run([](int) {
    float value = 1;
    const perseus_memory_t memory{&value, sizeof value};
    Submission sum(PERSEUS_ALLREDUCE, "sum");
    sum.raw.offered = &memory;
    REQUIRE(sum.tensor(&value, &value, {}, PERSEUS_FLOAT32).run() == PERSEUS_INVALID_ARGUMENT);
  });
}

}  // namespace
}  // namespace perseus::test
