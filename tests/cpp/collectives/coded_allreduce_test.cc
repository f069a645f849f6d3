#include "collectives/coded_allreduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "collectives/loopback.h"
#include "reference/reduced.h"

namespace perseus {
namespace {

// Keeps multiples of a quarter between -31.75 and 31.75 as one byte each, after a header of one
// odd byte.
class QuarterCodec final : public Codec {
 public:
  std::string_view name() const override { return "quarter"; }
  size_t encoded_size(size_t elements) const override { return 1 + elements; }
  void encode(const float* source, size_t elements, std::byte* encoded) const override {
    encoded[0] = std::byte{0x77};
    for (size_t i = 0; i < elements; ++i) encoded[1 + i] = std::byte(lround(source[i] * 4) & 0xff);
  }
  void decode(const std::byte* encoded, float* target, size_t elements) const override {
    EXPECT_EQ(encoded[0], std::byte{0x77});
    for (size_t i = 0; i < elements; ++i) {
      target[i] = static_cast<float>(static_cast<int8_t>(encoded[1 + i])) / 4;
    }
  }
};

std::vector<std::vector<float>> inputs_on(int ranks, size_t elements) {
  std::vector<std::vector<float>> inputs(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < elements; ++i) {
      inputs[rank].push_back(static_cast<float>((i * 37 + rank * 11) % 61) / 10 - 3);
    }
  }
  return inputs;
}

TEST(CodedAllreduce, SumsWhatWasEncodedAndGivesEveryRankTheSameBits) {
  const QuarterCodec codec;
  for (const auto& hosts : std::vector<std::vector<int>>{{1}, {2}, {3}, {8}, {2, 2}}) {
    LoopbackWorld world(hosts, 1);
    uint64_t operation = 0;
    for (size_t elements : {1, 5, 1000, 50021}) {
      const auto inputs = inputs_on(world.size(), elements);
      auto data = inputs;
      auto lost = inputs;
      std::vector<Task> tasks;
      ++operation;
      for (int rank = 0; rank < world.size(); ++rank) {
        tasks.push_back(coded_allreduce(world.group(rank), world.options(operation),
                                        data[rank].data(), elements, codec, lost[rank].data()));
      }
      for (const Status& status : world.run(std::move(tasks))) {
        ASSERT_TRUE(status.is_ok()) << status.message();
      }
      ASSERT_EQ(world.violations(), std::vector<std::string>());
      for (size_t i = 0; i < elements; ++i) {
        double sum = 0;
        for (int rank = 0; rank < world.size(); ++rank) {
          const double kept = std::lround(inputs[rank][i] * 4) / 4.0;
          sum += kept;
          ASSERT_NEAR(lost[rank][i], inputs[rank][i] - kept, 1e-6);
        }
        // Sums of quarters are quarters: the second encoding loses nothing.
        ASSERT_EQ(data[0][i], sum) << world.size() << " ranks, at " << i;
      }
      for (const auto& result : data) ASSERT_TRUE(result == data[0]);
    }
  }
}

TEST(CodedAllreduce, KeepsNoResidualWhenNoneIsAskedFor) {
  const QuarterCodec codec;
  LoopbackWorld world({3}, 2);
  auto data = inputs_on(3, 100);
  std::vector<Task> tasks;
  for (int rank = 0; rank < 3; ++rank) {
    tasks.push_back(coded_allreduce(world.group(rank), world.options(1), data[rank].data(), 100,
                                    codec, nullptr));
  }
  for (const Status& status : world.run(std::move(tasks))) EXPECT_TRUE(status.is_ok());
  EXPECT_EQ(data[1], data[0]);
}

TEST(CodedAllreduce, EndsOnEveryRankWithTheErrorOfAFailedLink) {
  const QuarterCodec codec;
  for (int messages : {0, 1, 7}) {
    LoopbackWorld world({3}, 3);
    auto data = inputs_on(3, 1000);
    std::vector<Task> tasks;
    for (int rank = 0; rank < 3; ++rank) {
      tasks.push_back(coded_allreduce(world.group(rank), world.options(1), data[rank].data(), 1000,
                                      codec, nullptr));
    }
    world.fail_after(messages, Status::aborted("rank 1 died"));
    for (const Status& status : world.run(std::move(tasks))) {
      EXPECT_EQ(status.message(), "rank 1 died") << messages;
    }
  }
}

}  // namespace
}  // namespace perseus
