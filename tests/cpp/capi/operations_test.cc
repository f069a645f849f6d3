// The C interface end to end: real processes over each transport. The collectives themselves are
// in collectives_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "capi/world.h"

namespace perseus::test {
namespace {

struct Setting {
  const char* name;
  int size;
  Environment environment;
};

class Operations : public testing::TestWithParam<Setting> {
 protected:
  int size() const { return GetParam().size; }
  void run(const std::function<void(int)>& body) {
    World(size(), GetParam().environment).run(body);
  }
};

TEST_P(Operations, MismatchedShapesFailOnEveryRankAndTheJobGoesOn) {
  if (size() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  run([&](int rank) {
    std::vector<float> data(8, 1.0f);
    const std::vector<int64_t> shape = {rank == 0 ? 8 : 4};
    Submission wrong(PERSEUS_ALLREDUCE, "wrong");
    REQUIRE(wrong.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32).run() ==
            PERSEUS_MISMATCH);
    const std::string message = perseus_last_error();
    REQUIRE(message.find("float32[8]") != std::string::npos);
    REQUIRE(message.find("float32[4]") != std::string::npos);
    const std::vector<int64_t> right = {8};
    Submission again(PERSEUS_ALLREDUCE, "wrong");
    REQUIRE(again.tensor(data.data(), data.data(), right, PERSEUS_FLOAT32).run() == PERSEUS_OK);
    REQUIRE(data[0] == static_cast<float>(size()));
  });
}

TEST_P(Operations, WhatOneRankGetsWrongFailsOnAllWithItsReasonAndTheJobGoesOn) {
  if (size() < 2) GTEST_SKIP() << "one rank has nobody to tell";
  const int odd = size() - 1;
  run([&](int rank) {
    std::vector<float> data(8, 1.0f);
    const std::vector<int64_t> shape = {8};
    for (int time = 0; time < 3; ++time) {
      Submission broadcast(PERSEUS_BROADCAST, "b");
      broadcast.raw.root = rank == odd ? 1000 : 0;
      REQUIRE(broadcast.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32).run() ==
              (rank == odd ? PERSEUS_INVALID_ARGUMENT : PERSEUS_MISMATCH));
      const std::string message = perseus_last_error();
      REQUIRE(message.find("root rank 1000 does not belong to process set 0") != std::string::npos);
      REQUIRE(rank == odd || message.find("rank " + std::to_string(odd) + " could not take part") !=
                                 std::string::npos);
    }
    // An error that an adapter finds itself; afterwards all ranks use the same name correctly.
    Submission reduce(PERSEUS_ALLREDUCE, "a");
    reduce.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
    if (rank == odd) {
      REQUIRE(perseus_refuse(reduce.raw.id, "the gradient is sparse") == PERSEUS_OK);
    } else {
      REQUIRE(reduce.run() == PERSEUS_MISMATCH);
      REQUIRE(std::string(perseus_last_error()).find("allreduce of 'a': the gradient is sparse") !=
              std::string::npos);
    }
    REQUIRE(reduce.run() == PERSEUS_OK);
    REQUIRE(data[0] == static_cast<float>(size()));
    Submission broadcast(PERSEUS_BROADCAST, "b");
    REQUIRE(broadcast.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32).run() == PERSEUS_OK);
  });
}

TEST(Arguments, HaveTitlesByTheirIds) {
  int32_t id = -1;
  ASSERT_EQ(perseus_register(PERSEUS_WORLD, PERSEUS_BROADCAST, "with a title", &id), PERSEUS_OK);
  EXPECT_EQ(std::string(perseus_title(id)), "broadcast of 'with a title'");
  EXPECT_EQ(std::string(perseus_title(-1)), "");
  EXPECT_EQ(std::string(perseus_title(id + 1000)), "");
}

TEST(Arguments, ThatAreMissingOrImpossibleAreErrors) {
  const int32_t ranks[] = {0};
  perseus_init_options_t options{};
  EXPECT_EQ(perseus_init(&options), PERSEUS_INVALID_ARGUMENT);  // its struct_size
  options.struct_size = sizeof options;
  options.ranks = ranks;
  options.rank_count = -4;
  EXPECT_EQ(perseus_init(&options), PERSEUS_INVALID_ARGUMENT);
  options.ranks = nullptr;
  options.rank_count = 3;
  EXPECT_EQ(perseus_init(&options), PERSEUS_INVALID_ARGUMENT);
  EXPECT_EQ(perseus_counters(nullptr, nullptr), PERSEUS_INVALID_ARGUMENT);
  EXPECT_EQ(perseus_settings(nullptr, nullptr), PERSEUS_INVALID_ARGUMENT);
  EXPECT_EQ(perseus_check_environment(nullptr), PERSEUS_INVALID_ARGUMENT);
  EXPECT_EQ(perseus_check_build(nullptr, nullptr), PERSEUS_INVALID_ARGUMENT);
  EXPECT_EQ(perseus_core_distance(0, 1, nullptr), PERSEUS_INVALID_ARGUMENT);
  EXPECT_EQ(perseus_register(PERSEUS_WORLD, PERSEUS_ALLREDUCE, "x", nullptr),
            PERSEUS_INVALID_ARGUMENT);
  EXPECT_NE(std::string(perseus_last_error()).find("id of 'x'"), std::string::npos);
}

TEST_P(Operations, AShapeThatIsMissingIsAnError) {
  run([](int) {
    REQUIRE(perseus_process_set_ranks(PERSEUS_WORLD, nullptr) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(perseus_process_sets(nullptr, 4) == 1);
  });
  run([&](int) {
    std::vector<float> data(4);
    for (const int32_t dimensions : {1, -1}) {
      perseus_tensor_t tensor = {data.data(), data.data(), nullptr, dimensions, PERSEUS_FLOAT32};
      Submission wrong(PERSEUS_ALLREDUCE, "shapeless");
      wrong.raw.tensors = &tensor;
      wrong.raw.tensor_count = 1;
      REQUIRE(wrong.run() == PERSEUS_INVALID_ARGUMENT);
      REQUIRE(std::string(perseus_last_error()).find("its shape is missing") != std::string::npos);
    }
    const std::vector<int64_t> of_no_memory = {int64_t{1} << 50}, of_nothing = {1LL << 50, 0};
    Submission huge(PERSEUS_ALLREDUCE, "huge");
    huge.tensor(data.data(), nullptr, of_no_memory, PERSEUS_FLOAT32);
    REQUIRE(huge.run() == PERSEUS_INVALID_ARGUMENT);
    Submission empty(PERSEUS_ALLREDUCE, "empty");
    empty.tensor(nullptr, nullptr, of_nothing, PERSEUS_FLOAT32);
    REQUIRE(empty.run() == PERSEUS_OK);
  });
}

TEST_P(Operations, ASubmissionWithoutAPlaceForItsHandleFailsOnAll) {
  run([&](int rank) {
    const int wrong = size() - 1;
    float value = 1;
    Submission sum(PERSEUS_ALLREDUCE, "sum");
    sum.tensor(&value, &value, {}, PERSEUS_FLOAT32);
    const perseus_status_t status = rank == wrong ? perseus_submit(&sum.raw, nullptr) : sum.run();
    REQUIRE(status == (rank == wrong ? PERSEUS_INVALID_ARGUMENT : PERSEUS_MISMATCH));
    REQUIRE(std::string(perseus_last_error()).find("the place for its handle is missing") !=
            std::string::npos);
    REQUIRE(sum.run() == PERSEUS_OK);
    REQUIRE(value == static_cast<float>(size()));
  });
}

TEST_P(Operations, AProcessSetThatOneRankGetsWrongFailsOnAll) {
  if (size() < 3) GTEST_SKIP() << "a set of some of the ranks needs more";
  run([&](int rank) {
    const int32_t ranks[] = {0, rank == 1 ? 1000 : 1};
    perseus_process_set_t set = -1;
    REQUIRE(perseus_add_process_set(ranks, 2, &set) ==
            (rank == 1 ? PERSEUS_INVALID_ARGUMENT : PERSEUS_MISMATCH));
    REQUIRE(std::string(perseus_last_error()).find("different numbers from 0 to") !=
            std::string::npos);
    const int32_t count = rank == 2 ? 0 : 2;
    REQUIRE(perseus_add_process_set(ranks, count, &set) != PERSEUS_OK);
    const int32_t right[] = {0, 1};
    REQUIRE(perseus_add_process_set(right, 2, &set) == PERSEUS_OK);
    REQUIRE(perseus_remove_process_set(set) == PERSEUS_OK);
  });
}

TEST_P(Operations, ProcessSetsRunSideBySide) {
  run([&](int rank) {
    std::vector<perseus_process_set_t> sets;
    // Each neighbouring pair, and everyone alone.
    for (int first = 0; first + 1 < size() && size() > 2; ++first) {
      const int32_t ranks[] = {first, first + 1};
      perseus_process_set_t set = -1;
      REQUIRE(perseus_add_process_set(ranks, 2, &set) == PERSEUS_OK);
      sets.push_back(set);
    }
    const std::vector<int64_t> shape = {1000};
    for (int round = 0; round < 20; ++round) {
      std::vector<std::vector<float>> data;
      std::vector<perseus_handle_t> handles;
      data.reserve(sets.size());
      for (size_t i = 0; i < sets.size(); ++i) {
        // Odd ranks go the other way round.
        const perseus_process_set_t set = sets[rank % 2 ? sets.size() - 1 - i : i];
        if (perseus_process_set_rank(set) < 0) continue;
        REQUIRE(perseus_process_set_size(set) == 2);
        auto& mine = data.emplace_back(1000, static_cast<float>(rank));
        Submission sum(PERSEUS_ALLREDUCE, "pair", set);
        handles.push_back(sum.tensor(mine.data(), mine.data(), shape, PERSEUS_FLOAT32).submit());
      }
      for (perseus_handle_t handle : handles) {
        REQUIRE(perseus_wait(handle, -1) == PERSEUS_OK);
        perseus_release(handle);
      }
    }
    for (perseus_process_set_t set : sets) REQUIRE(perseus_remove_process_set(set) == PERSEUS_OK);
  });
}

TEST_P(Operations, ASetIsOpenedByItsMembersAlone) {
  if (size() < 3) GTEST_SKIP() << "a set of some of the ranks needs more";
  run([&](int rank) {
    const std::vector<int64_t> shape = {1000};
    const int32_t pair[] = {0, 2}, others[] = {1, 2};
    const perseus_process_set_t first = PERSEUS_FIRST_OPENED_SET, second = first + 1;
    REQUIRE(perseus_open_process_set(7, pair, 2) == PERSEUS_INVALID_ARGUMENT);
    if (rank == 1) {
      REQUIRE(perseus_open_process_set(first, pair, 2) == PERSEUS_INVALID_ARGUMENT);
    }
    const auto sum_in = [&](perseus_process_set_t set, const int32_t* ranks) {
      if (rank != ranks[0] && rank != ranks[1]) return;
      // Data of a member that is ahead may come before the set is open here.
      if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      REQUIRE(perseus_open_process_set(set, ranks, 2) == PERSEUS_OK);
      REQUIRE(perseus_open_process_set(set, ranks, 2) == PERSEUS_INVALID_ARGUMENT);
      for (int step = 0; step < 5; ++step) {
        std::vector<float> data(1000, static_cast<float>(rank));
        Submission sum(PERSEUS_ALLREDUCE, "sum", set);
        REQUIRE(sum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32).run() == PERSEUS_OK);
        REQUIRE(data[999] == static_cast<float>(ranks[0] + ranks[1]));
      }
      REQUIRE(perseus_close_process_set(set) == PERSEUS_OK);
      REQUIRE(perseus_close_process_set(set) == PERSEUS_INVALID_ARGUMENT);
      REQUIRE(perseus_open_process_set(set, ranks, 2) == PERSEUS_INVALID_ARGUMENT);
    };
    sum_in(first, pair);
    sum_in(second, others);
    // A set of the same ranks that all know of is a different set.
    perseus_process_set_t set = -1;
    REQUIRE(perseus_add_process_set(pair, 2, &set) == PERSEUS_OK);
    REQUIRE(set < PERSEUS_FIRST_OPENED_SET);
    REQUIRE(perseus_remove_process_set(set) == PERSEUS_OK);
  });
}

// Small allreduces take no messages beyond the agreements, large ones do; the world goes on.
TEST_P(Operations, ASetThatOneMemberClosesEndsForAll) {
  run([&](int rank) {
    std::vector<int32_t> everyone;
    for (int r = 0; r < size(); ++r) everyone.push_back(r);
    for (int round = 0; round < 24; ++round) {
      const perseus_process_set_t set = PERSEUS_FIRST_OPENED_SET + round;
      const int closer = round % size();
      REQUIRE(perseus_open_process_set(set, everyone.data(), size()) == PERSEUS_OK);
      const size_t elements = round % 3 == 0 ? 20000 : 4;
      perseus_status_t ended = PERSEUS_OK;
      std::string why;
      std::thread reducing([&] {
        const std::vector<int64_t> shape = {static_cast<int64_t>(elements)};
        std::vector<float> ones(elements, 1.0f), sum(elements);
        Submission reduce(PERSEUS_ALLREDUCE, "again and again", set);
        reduce.tensor(ones.data(), sum.data(), shape, PERSEUS_FLOAT32);
        while (ended == PERSEUS_OK) {
          ended = reduce.run();
          if (ended == PERSEUS_OK && sum[elements - 1] != static_cast<float>(size())) {
            ended = PERSEUS_INTERNAL;
          }
        }
        why = perseus_last_error();
      });
      if (rank == closer) {
        usleep(90 * round);
        REQUIRE(perseus_close_process_set(set) == PERSEUS_OK);
      }
      reducing.join();
      if (rank == closer) {
        REQUIRE(ended == PERSEUS_INVALID_ARGUMENT);
      } else {
        REQUIRE(ended == PERSEUS_ABORTED);
        REQUIRE(why.find("rank " + std::to_string(closer) + " ") != std::string::npos);
        REQUIRE(why.find("has closed process set " + std::to_string(set)) != std::string::npos);
        REQUIRE(perseus_close_process_set(set) == PERSEUS_OK);
      }
      Submission barrier(PERSEUS_BARRIER, "the world goes on");
      REQUIRE(barrier.run() == PERSEUS_OK);
    }
  });
}

TEST_P(Operations, JoinLetsTheOthersFinishTheirSteps) {
  run([&](int rank) {
    const std::vector<int64_t> shape = {100};
    for (int step = 0; step <= rank; ++step) {
      std::vector<float> data(100, 1.0f);
      Submission sum(PERSEUS_ALLREDUCE, "step");
      REQUIRE(sum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32).run() == PERSEUS_OK);
      REQUIRE(data[50] == static_cast<float>(size() - step));
    }
    Submission join(PERSEUS_JOIN, "join");
    const perseus_handle_t handle = join.submit();
    const perseus_result_t result = wait_for_result(handle);
    REQUIRE(result.last_rank == size() - 1);
    perseus_release(handle);
    Submission barrier(PERSEUS_BARRIER, "after");
    REQUIRE(barrier.run() == PERSEUS_OK);
  });
}

// A name that belongs to no codec.
int32_t register_plain_codec(const std::string& name) {
  perseus_codec_t plain{};
  plain.struct_size = sizeof plain;
  plain.name = name.c_str();
  plain.encoded_size = [](void*, size_t elements) { return elements * sizeof(float); };
  plain.encode = [](void*, const float* elements, size_t count, void* encoded) {
    std::memcpy(encoded, elements, count * sizeof(float));
  };
  plain.decode = [](void*, const void* encoded, float* elements, size_t count) {
    std::memcpy(elements, encoded, count * sizeof(float));
  };
  int32_t id = 0;
  REQUIRE(perseus_register_codec(&plain, &id) == PERSEUS_OK);
  return id;
}

TEST_P(Operations, CodecsAreToldApartByTheirNames) {
  run([&](int rank) {
    const bool is_odd = rank % 2 == 1;
    const int32_t first = register_plain_codec(is_odd ? "odd" : "even");
    const int32_t second = register_plain_codec(is_odd ? "even" : "odd");
    const std::vector<int64_t> shape = {100};
    const auto sum_by = [&](int32_t codec) {
      std::vector<float> data(100, 1.0f);
      Submission sum(PERSEUS_ALLREDUCE, "coded");
      sum.raw.codec = codec;
      const perseus_status_t status =
          sum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32).run();
      REQUIRE(status != PERSEUS_OK || data[99] == static_cast<float>(size()));
      return status;
    };
    REQUIRE(sum_by(is_odd ? first : second) == PERSEUS_OK);
    REQUIRE(sum_by(first) == (size() == 1 ? PERSEUS_OK : PERSEUS_MISMATCH));
    REQUIRE(sum_by(is_odd ? second : first) == PERSEUS_OK);
  });
}

// A counter of this process.
uint64_t counter(const std::string& name) {
  struct Search {
    const std::string& name;
    uint64_t value;
  } search{name, 0};
  perseus_counters(
      [](void* user, const char* found, uint64_t value) {
        auto* wanted = static_cast<Search*>(user);
        if (wanted->name == found) wanted->value = value;
      },
      &search);
  return search.value;
}

TEST_P(Operations, ASmallAllreduceOfAKnownNameTakesNoMessageButTheAgreements) {
  run([&](int rank) {
    for (const auto op : {PERSEUS_SUM, PERSEUS_AVERAGE, PERSEUS_MAX}) {
      const std::string name = "small." + std::to_string(op);
      const std::vector<int64_t> shape = {7};
      std::vector<float> input(7), output(7);
      uint64_t shards = 0, reduced = 0;
      for (int step = 0; step < 20; ++step) {
        for (int i = 0; i < 7; ++i) input[i] = static_cast<float>((rank + 1) * (i + 1) + step);
        Submission reduce(PERSEUS_ALLREDUCE, name);
        reduce.raw.reduce_op = op;
        const bool is_in_place = step % 2 == 1;
        float* result = is_in_place ? input.data() : output.data();
        REQUIRE(reduce.tensor(input.data(), result, shape, PERSEUS_FLOAT32).run() == PERSEUS_OK);
        double sum = 0, most = 0;
        for (int r = 0; r < size(); ++r) {
          sum += (r + 1) * 7 + step;
          most = std::max<double>(most, (r + 1) * 7 + step);
        }
        const double expected = op == PERSEUS_SUM ? sum : op == PERSEUS_MAX ? most : sum / size();
        REQUIRE(std::abs(result[6] - expected) <= 1e-6 * expected);
        if (step == 0) {
          shards = counter("shards");
          reduced = counter("bytes_reduced");
        }
      }
      REQUIRE(counter("shards") == shards);
      REQUIRE(counter("bytes_reduced") == reduced + 19 * 7 * sizeof(float));
    }
  });
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (int size : {1, 2, 3, 4}) all.push_back({"shm", size, {}});
  for (int size : {2, 3, 4}) all.push_back({"tcp", size, {{"PERSEUS_TRANSPORT", "tcp"}}});
  all.push_back({"small_shards",
                 3,
                 {{"PERSEUS_ALLREDUCE_SHARD", "0.0625"}, {"PERSEUS_ALLREDUCE_FUSION", "0.01"}}});
  return all;
}

INSTANTIATE_TEST_SUITE_P(Transports, Operations, testing::ValuesIn(settings()),
                         [](const auto& info) {
                           return std::string(info.param.name) + "_" +
                                  std::to_string(info.param.size) + "_ranks";
                         });

TEST(Counters, AnAgreementCostsOneMessageARankForEachDoublingOfRanks) {
  for (int size : {2, 3, 4, 8}) {
    World(size).run([size](int rank) {
      uint64_t hops = 0;
      while ((1 << hops) < size) ++hops;
      float value = 0;
      for (int step = 0; step < 20; ++step) {
        Submission sum(PERSEUS_ALLREDUCE, "value");
        REQUIRE(sum.tensor(&value, &value, {}, PERSEUS_FLOAT32).run() == PERSEUS_OK);
      }
      const uint64_t agreements = counter("agreements");
      REQUIRE(agreements >= 20);
      // A ballot of a round that has only begun may already be out.
      REQUIRE(counter("agreement_messages_sent") >= agreements * hops);
      REQUIRE(counter("agreement_messages_sent") <= (agreements + 1) * hops);
    });
  }
}

}  // namespace
}  // namespace perseus::test
