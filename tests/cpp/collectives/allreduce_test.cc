#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "collectives/collective.h"
#include "collectives/loopback.h"
#include "reference/reduced.h"

namespace perseus {
namespace {

struct Algorithm {
  const char* name;
  AllreduceAlgorithm algorithm;
};
void PrintTo(const Algorithm& algorithm, std::ostream* out) { *out << algorithm.name; }

constexpr Algorithm kAlgorithms[] = {{"auto", AllreduceAlgorithm::kAuto},
                                     {"direct", AllreduceAlgorithm::kDirect},
                                     {"recursive_doubling", AllreduceAlgorithm::kRecursiveDoubling},
                                     {"ring", AllreduceAlgorithm::kRing},
                                     {"hierarchical", AllreduceAlgorithm::kHierarchical}};

class Allreduce : public testing::TestWithParam<Algorithm> {
 protected:
  // Returns the results by rank, after checking that nothing failed and no rule was broken.
  std::vector<Elements> reduce(LoopbackWorld& world, const std::vector<Elements>& inputs,
                               DataType type, ReduceOp op, bool in_place, double factor = 1.0) {
    std::vector<Elements> in = inputs, out;
    const size_t elements = inputs[0].size();
    std::vector<Task> tasks;
    for (int rank = 0; rank < world.size(); ++rank) {
      out.push_back(in_place ? in[rank] : Elements(type, elements));
    }
    ++operation_;
    for (int rank = 0; rank < world.size(); ++rank) {
      const void* source = in_place ? out[rank].data() : in[rank].data();
      tasks.push_back(allreduce(world.group(rank), world.options(operation_), source,
                                out[rank].data(), elements, type, op, GetParam().algorithm,
                                factor));
    }
    for (const Status& status : world.run(std::move(tasks))) {
      EXPECT_TRUE(status.is_ok()) << status.message();
    }
    EXPECT_EQ(world.violations(), std::vector<std::string>());
    for (int rank = 0; rank < world.size(); ++rank) {
      EXPECT_TRUE(out[rank].guards_intact());
      EXPECT_TRUE(in[rank].bytes() == inputs[rank].bytes()) << "the input was written to";
      EXPECT_TRUE(out[rank].bytes() == out[0].bytes())
          << "ranks 0 and " << rank << " have different bits";
    }
    return out;
  }

  void check(LoopbackWorld& world, DataType type, ReduceOp op, size_t elements, bool in_place) {
    SCOPED_TRACE(std::string(to_string(type)) + " " + std::string(to_string(op)) + ", " +
                 std::to_string(world.size()) + " ranks, " + std::to_string(elements) +
                 " elements" + (in_place ? ", in place" : ""));
    const std::vector<Elements>& inputs = inputs_of(world.size(), type, elements);
    const std::vector<Elements> results = reduce(world, inputs, type, op, in_place);
    const size_t wrong = first_wrong(results[0], inputs, 0, type, op, 2 * world.size());
    ASSERT_EQ(wrong, elements) << "it is " << results[0][wrong] << " and should be "
                               << expected_reduction(inputs, type, op, wrong).value;
  }

  uint64_t operation_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Algorithms, Allreduce, testing::ValuesIn(kAlgorithms),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Allreduce, SumsAlikeOnOneToEightRanks) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    LoopbackWorld world({ranks}, ranks);
    for (size_t elements : {0, 1, 5, 1000}) {
      for (DataType type :
           {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16, DataType::kFloat64,
            DataType::kInt32, DataType::kInt64, DataType::kBool}) {
        for (bool in_place : {true, false}) {
          check(world, type, ReduceOp::kSum, elements, in_place);
        }
      }
    }
  }
}

TEST_P(Allreduce, SumsBuffersOfManyChunks) {
  for (int ranks = 1; ranks <= 8; ++ranks) {
    LoopbackWorld world({ranks}, ranks);
    check(world, DataType::kFloat32, ReduceOp::kSum, 100003, ranks % 2 == 0);
    check(world, DataType::kFloat16, ReduceOp::kSum, 100003, ranks % 2 == 1);
  }
  for (int ranks : {2, 3}) {
    LoopbackWorld world({ranks}, ranks);
    check(world, DataType::kFloat32, ReduceOp::kSum, (1 << 20) + 3, ranks == 2);
  }
}

TEST_P(Allreduce, TakesEveryOperation) {
  // Not more ranks than a product of int64 has room for.
  LoopbackWorld world({3}, 1);
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    for (DataType type :
         {DataType::kFloat32, DataType::kBfloat16, DataType::kBool, DataType::kInt64}) {
      check(world, type, op, 1000, false);
      check(world, type, op, 20011, true);
    }
  }
}

TEST_P(Allreduce, WorksAcrossHosts) {
  for (std::vector<int> hosts : {std::vector<int>{2, 2}, {1, 1, 1}, {4, 4}, {2, 2, 2}, {3, 3, 3}}) {
    LoopbackWorld world(hosts, 3);
    for (size_t elements : {1, 5, 1000, 100003}) {
      check(world, DataType::kFloat32, ReduceOp::kSum, elements, elements % 2 == 0);
    }
    check(world, DataType::kFloat16, ReduceOp::kSum, 50021, true);
  }
}

TEST_P(Allreduce, AveragesOfHalvesAreFiniteWhereTheirSumsAreNot) {
  for (const std::vector<int>& hosts :
       std::vector<std::vector<int>>{{1}, {2}, {3}, {4}, {1, 1}, {2, 2}, {3, 3, 3}}) {
    LoopbackWorld world(hosts, 5);
    const int size = world.size();
    for (size_t elements : {5, 50021}) {
      std::vector<Elements> inputs;
      for (int rank = 0; rank < size; ++rank) {
        Elements& input = inputs.emplace_back(DataType::kFloat16, elements);
        for (size_t i = 0; i < elements; ++i) {
          const double value = 65504 - static_cast<double>((i * 37 + rank * 1009) % 6000);
          input.set(i, i % 2 == 0 ? value : -value);
        }
      }
      for (bool in_place : {false, true}) {
        const std::vector<Elements> results =
            reduce(world, inputs, DataType::kFloat16, ReduceOp::kSum, in_place, 1.0 / size);
        for (size_t i = 0; i < elements; ++i) {
          Expected mean = expected_reduction(inputs, DataType::kFloat16, ReduceOp::kSum, i);
          mean.value /= size;
          mean.magnitude /= size;
          const double allowed = tolerance(DataType::kFloat16, mean, ReduceOp::kSum, 2 * size);
          ASSERT_LE(std::abs(results[0][i] - mean.value), allowed)
              << size << " ranks, element " << i << " of " << elements;
        }
      }
    }
  }
}

TEST_P(Allreduce, ScalesTheResultOfAnyTypeAndOperation) {
  LoopbackWorld world({2, 2}, 6);
  for (DataType type : {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16,
                        DataType::kFloat16, DataType::kInt32}) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kProduct}) {
      const bool has_small_range = type == DataType::kInt32 || type == DataType::kFloat16;
      if (op == ReduceOp::kProduct && has_small_range) continue;  // the product of four leaves it
      for (double factor : {0.25, -3.0, 0.0}) {
        for (size_t elements : {7, 30011}) {
          const std::vector<Elements>& inputs = inputs_of(4, type, elements);
          const std::vector<Elements> results = reduce(world, inputs, type, op, true, factor);
          for (size_t i = 0; i < elements; ++i) {
            Expected expected = expected_reduction(inputs, type, op, i);
            expected.value *= factor;
            expected.magnitude =
                std::max(expected.magnitude * std::abs(factor), std::abs(expected.value));
            // One rounding more: a max is exact, its multiple is not.
            const double allowed = tolerance(type, expected, ReduceOp::kSum, 2 * world.size() + 1);
            if (!is_floating(type)) expected.value = std::trunc(expected.value);
            ASSERT_LE(std::abs(results[0][i] - expected.value), allowed)
                << to_string(type) << " " << to_string(op) << " times " << factor;
          }
        }
      }
    }
  }
}

TEST_P(Allreduce, TakesEveryTypeAndOperationUnderSeveralCaches) {
  const std::vector<std::vector<int>> shapes{{0, 0, 1, 1}, {0, 8, 0, 8}, {3, 3, 3, 1, 1, 1}};
  for (const std::vector<int>& cache_of : shapes) {
    const int size = static_cast<int>(cache_of.size());
    LoopbackWorld world({size}, size, cache_of);
    for (DataType type :
         {DataType::kUint8, DataType::kInt8, DataType::kInt32, DataType::kInt64, DataType::kFloat16,
          DataType::kFloat32, DataType::kFloat64, DataType::kBool, DataType::kBfloat16}) {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
        // The product of more ranks leaves the range of these.
        const bool has_small_range = type != DataType::kFloat32 && type != DataType::kFloat64;
        if (op == ReduceOp::kProduct && has_small_range) continue;
        for (size_t elements : {3, 1000, 40009}) {
          check(world, type, op, elements, elements % 2 == 0);
        }
      }
    }
  }
}

TEST_P(Allreduce, WorksUnderCachesWithUnequalNumbersOfRanks) {
  for (const std::vector<int>& cache_of :
       std::vector<std::vector<int>>{{0, 1}, {0, 0, 1}, {0, 0, -1, -1}, {0, 1, 1, 1}}) {
    LoopbackWorld world({static_cast<int>(cache_of.size())}, 2, cache_of);
    EXPECT_FALSE(can_be_hierarchical(world.group(0)));
    check(world, DataType::kFloat32, ReduceOp::kSum, 40009, true);
  }
}

TEST_P(Allreduce, SegmentsALargeBufferAcrossHosts) {
  LoopbackWorld world({2, 2}, 4);
  check(world, DataType::kFloat32, ReduceOp::kSum, (5 << 18) + 1, true);
}

TEST_P(Allreduce, GivesTheSameBitsWhateverTheOrderOfArrival) {
  const std::vector<Elements>& inputs = inputs_of(6, DataType::kFloat32, 100003);
  std::string first;
  for (uint64_t seed : {1, 2, 3}) {
    LoopbackWorld world({3, 3}, seed);
    const auto results = reduce(world, inputs, DataType::kFloat32, ReduceOp::kSum, false);
    if (first.empty()) first = results[0].bytes();
    EXPECT_TRUE(results[0].bytes() == first);
  }
}

TEST_P(Allreduce, EndsOnEveryRankWithTheErrorOfAFailedLink) {
  for (size_t elements : {5, 100003}) {
    for (int messages : {0, 1, 3}) {
      LoopbackWorld world({2, 2}, 5);
      std::vector<Elements> in = inputs_of(4, DataType::kFloat32, elements);
      std::vector<Task> tasks;
      for (int rank = 0; rank < 4; ++rank) {
        tasks.push_back(allreduce(world.group(rank), world.options(1), in[rank].data(),
                                  in[rank].data(), elements, DataType::kFloat32, ReduceOp::kSum,
                                  GetParam().algorithm));
      }
      world.fail_after(messages, Status::aborted("rank 2 died"));
      for (const Status& status : world.run(std::move(tasks))) {
        EXPECT_EQ(status.code(), StatusCode::kAborted) << messages << " messages";
        EXPECT_EQ(status.message(), "rank 2 died");
      }
    }
  }
}

TEST_P(Allreduce, RunsManyAtOnceOnTheSameLinks) {
  LoopbackWorld world({4}, 6);
  constexpr int kOperations = 5;
  constexpr size_t kElements = 3001;
  std::vector<std::vector<Elements>> inputs, buffers;
  std::vector<Task> tasks;
  for (int operation = 0; operation < kOperations; ++operation) {
    inputs.push_back(inputs_of(4, DataType::kInt32, kElements + operation));
    buffers.push_back(inputs.back());
    for (int rank = 0; rank < 4; ++rank) {
      tasks.push_back(allreduce(world.group(rank), world.options(operation),
                                buffers[operation][rank].data(), buffers[operation][rank].data(),
                                kElements + operation, DataType::kInt32, ReduceOp::kSum,
                                GetParam().algorithm));
    }
  }
  for (const Status& status : world.run(std::move(tasks))) ASSERT_TRUE(status.is_ok());
  EXPECT_EQ(world.violations(), std::vector<std::string>());
  for (int operation = 0; operation < kOperations; ++operation) {
    for (size_t i = 0; i < kElements + operation; ++i) {
      const Expected expected =
          expected_reduction(inputs[operation], DataType::kInt32, ReduceOp::kSum, i);
      for (int rank = 0; rank < 4; ++rank) {
        ASSERT_EQ(buffers[operation][rank][i], expected.value);
      }
    }
  }
}

TEST(AllreduceRounding, SixteenBitFloatsAreRoundedOnceWhereEachPartHasOneOwner) {
  for (AllreduceAlgorithm algorithm :
       {AllreduceAlgorithm::kDirect, AllreduceAlgorithm::kRecursiveDoubling}) {
    for (size_t elements : {100, 30011}) {
      LoopbackWorld world({7}, 7);
      const std::vector<Elements>& inputs = inputs_of(7, DataType::kBfloat16, elements);
      std::vector<Elements> buffers = inputs;
      std::vector<Task> tasks;
      for (int rank = 0; rank < 7; ++rank) {
        tasks.push_back(allreduce(world.group(rank), world.options(1), buffers[rank].data(),
                                  buffers[rank].data(), elements, DataType::kBfloat16,
                                  ReduceOp::kSum, algorithm));
      }
      for (const Status& status : world.run(std::move(tasks))) ASSERT_TRUE(status.is_ok());
      for (size_t i = 0; i < elements; ++i) {
        const Expected expected =
            expected_reduction(inputs, DataType::kBfloat16, ReduceOp::kSum, i);
        // Half a unit in the last place of bfloat16, and float32's errors on the way.
        const double once =
            std::ldexp(std::abs(expected.value), -8) + std::ldexp(expected.magnitude, -20) + 1e-30;
        ASSERT_NEAR(buffers[3][i], expected.value, once);
      }
    }
  }
}

TEST(AllreduceHierarchical, CrossesBetweenHostsAsSeldomAsItCan) {
  constexpr size_t kElements = 1 << 18;
  LoopbackWorld world({4, 4}, 8);
  std::vector<Elements> buffers = inputs_of(8, DataType::kFloat32, kElements);
  std::vector<Task> tasks;
  for (int rank = 0; rank < 8; ++rank) {
    tasks.push_back(allreduce(world.group(rank), world.options(1), buffers[rank].data(),
                              buffers[rank].data(), kElements, DataType::kFloat32, ReduceOp::kSum,
                              AllreduceAlgorithm::kAuto));
  }
  for (const Status& status : world.run(std::move(tasks))) ASSERT_TRUE(status.is_ok());
  // With two hosts, 2 (hosts - 1) / hosts of the buffer leaves each.
  EXPECT_EQ(world.bytes_between_hosts(), 2 * kElements * sizeof(float));
}

// Returns how many bytes cross between two caches with four ranks each.
uint64_t bytes_between_caches(AllreduceAlgorithm algorithm, size_t elements) {
  LoopbackWorld world({8}, 7, {0, 0, 0, 0, 1, 1, 1, 1});
  std::vector<Elements> buffers = inputs_of(8, DataType::kFloat32, elements);
  std::vector<Task> tasks;
  for (int rank = 0; rank < 8; ++rank) {
    tasks.push_back(allreduce(world.group(rank), world.options(1), buffers[rank].data(),
                              buffers[rank].data(), elements, DataType::kFloat32, ReduceOp::kSum,
                              algorithm));
  }
  for (const Status& status : world.run(std::move(tasks))) EXPECT_TRUE(status.is_ok());
  return world.bytes_between_caches();
}

TEST(AllreduceHierarchical, SendsEachByteOnceFromCacheToCache) {
  constexpr size_t kElements = 1 << 16, kBytes = kElements * sizeof(float);
  EXPECT_EQ(bytes_between_caches(AllreduceAlgorithm::kAuto, kElements), 2 * kBytes);
  // Half of each rank's contributions and results.
  EXPECT_EQ(bytes_between_caches(AllreduceAlgorithm::kDirect, kElements), 8 * kBytes);
}

TEST(AllreduceHierarchical, RefusesHostsOfDifferentSizes) {
  LoopbackWorld world({2, 1}, 9);
  std::vector<Elements> buffers = inputs_of(3, DataType::kFloat32, 10);
  std::vector<Task> tasks;
  for (int rank = 0; rank < 3; ++rank) {
    tasks.push_back(allreduce(world.group(rank), world.options(1), buffers[rank].data(),
                              buffers[rank].data(), 10, DataType::kFloat32, ReduceOp::kSum,
                              AllreduceAlgorithm::kHierarchical));
  }
  for (const Status& status : world.run(std::move(tasks))) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  }
}

// The bits of a sum of floats depend on the order in which it is added up.
TEST(AllreduceAtHand, GivesTheBitsThatMessagesWouldGive) {
  constexpr size_t kElements = 15;
  const std::vector<std::vector<int>> worlds = {{1}, {2},  {3},  {4},  {5},    {8},
                                                {9}, {12}, {16}, {33}, {2, 2}, {5, 6}};
  uint64_t operation = 0;
  for (const std::vector<int>& ranks_on_host : worlds) {
    LoopbackWorld world(ranks_on_host, 1);
    const int size = world.size();
    for (DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16,
                          DataType::kFloat64, DataType::kInt32, DataType::kBool}) {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kProduct}) {
        SCOPED_TRACE(std::string(to_string(type)) + " " + std::string(to_string(op)) + ", " +
                     std::to_string(size) + " ranks");
        const double factor = op == ReduceOp::kSum ? 1.0 / size : 1.0;
        const std::vector<Elements>& inputs = inputs_of(size, type, kElements);
        std::vector<Elements> moved;
        std::vector<std::byte> all;
        for (const Elements& input : inputs) {
          moved.emplace_back(type, kElements);
          const std::span bytes = std::as_bytes(std::span(input.bytes()));
          all.insert(all.end(), bytes.begin(), bytes.end());
          if (moved.size() == static_cast<size_t>(size)) break;
        }
        ++operation;
        std::vector<Task> tasks;
        for (int rank = 0; rank < size; ++rank) {
          tasks.push_back(allreduce(world.group(rank), world.options(operation),
                                    inputs[rank].data(), moved[rank].data(), kElements, type, op,
                                    AllreduceAlgorithm::kAuto, factor));
        }
        for (const Status& status : world.run(std::move(tasks))) ASSERT_TRUE(status.is_ok());
        BufferPool buffers;
        for (int rank = 0; rank < size; ++rank) {
          Elements gathered(type, kElements);
          ASSERT_TRUE(allreduce_gathered(world.group(rank), buffers, all, gathered.data(),
                                         kElements, type, op, factor)
                          .is_ok());
          EXPECT_TRUE(gathered.guards_intact());
          EXPECT_TRUE(gathered.bytes() == moved[rank].bytes()) << "rank " << rank;
        }
      }
    }
  }
}

Group group_of(std::vector<int> ranks_on_host, const std::vector<int>& cache_of = {}) {
  return LoopbackWorld(std::move(ranks_on_host), 1, cache_of).group(0);
}

TEST(ChooseAllreduce, GoesByHostsRanksAndBytes) {
  using enum AllreduceAlgorithm;
  constexpr size_t kSmall = 1000, kLarge = 10 << 20;
  EXPECT_EQ(choose_allreduce(group_of({4}), kSmall), kDirect);
  EXPECT_EQ(choose_allreduce(group_of({4}), kLarge), kDirect);
  EXPECT_EQ(choose_allreduce(group_of({16}), kSmall), kRecursiveDoubling);
  EXPECT_EQ(choose_allreduce(group_of({16}), kLarge), kDirect);
  EXPECT_EQ(choose_allreduce(group_of({2, 2}), kSmall), kDirect);
  EXPECT_EQ(choose_allreduce(group_of({2, 2}), kLarge), kHierarchical);
  EXPECT_EQ(choose_allreduce(group_of({1, 1, 1, 1}), kLarge), kDirect);
  EXPECT_EQ(choose_allreduce(group_of({2, 3}), kLarge), kDirect);
  EXPECT_EQ(choose_allreduce(group_of(std::vector<int>(16, 1)), kLarge), kRing);
  EXPECT_EQ(choose_allreduce(group_of({8, 7}), kLarge), kRing);
}

TEST(ChooseAllreduce, GoesByCachesInsideAHost) {
  using enum AllreduceAlgorithm;
  constexpr size_t kSmall = 64 << 10, kLarge = kSmall + 1;
  const Group group = group_of({4}, {0, 0, 1, 1});
  EXPECT_EQ(choose_allreduce(group, kSmall), kDirect);
  EXPECT_EQ(choose_allreduce(group, kLarge), kHierarchical);
  EXPECT_EQ(choose_flat_allreduce(group, kLarge), kDirect);
  // NCCL has no use for caches.
  EXPECT_FALSE(can_be_hierarchical_over_hosts(group));
  // Over hosts, hosts count.
  const Group over_hosts = group_of({2, 2}, {0, 1, 0, 1});
  EXPECT_EQ(choose_allreduce(over_hosts, kLarge), kHierarchical);
  EXPECT_EQ(over_hosts.by_cache, nullptr);
  EXPECT_EQ(levels_of(over_hosts), over_hosts.by_host.get());
}

}  // namespace
}  // namespace perseus
