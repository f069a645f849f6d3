// The C interface: what outlives a world in the process, with one codec that loses much. Values are
// multiples of a sixteenth and small, so that all sums are exact.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "capi/world.h"

namespace perseus::test {
namespace {

constexpr size_t kElements = 80'000;  // five shards of at least 64 KiB
constexpr double kQuarter = 0.25;

// Set: this process ends when it has encoded so many more times.
std::atomic<int> encodings_left{-1};

double rounded(double value) {
  return static_cast<double>(std::lround(value / kQuarter)) * kQuarter;
}

// Rounds to quarters. Sums of quarters are quarters, so only the first encoding loses something.
int32_t register_quarters() {
  perseus_codec_t quarters{};
  quarters.struct_size = sizeof quarters;
  quarters.name = "quarters";
  quarters.error_feedback = 1;
  quarters.encoded_size = [](void*, size_t elements) { return elements * sizeof(float); };
  quarters.encode = [](void*, const float* from, size_t count, void* to) {
    if (encodings_left.load() >= 0 && encodings_left.fetch_sub(1) == 0) _exit(0);
    for (size_t i = 0; i < count; ++i)
      static_cast<float*>(to)[i] = static_cast<float>(rounded(from[i]));
  };
  quarters.decode = [](void*, const void* from, float* to, size_t count) {
    std::memcpy(to, from, count * sizeof(float));
  };
  int32_t id = 0;
  REQUIRE(perseus_register_codec(&quarters, &id) == PERSEUS_OK);
  return id;
}

float gradient(int rank, int step, size_t element) {
  const size_t mixed =
      (element * 37 + static_cast<size_t>(step) * 101 + static_cast<size_t>(rank) * 59) % 97;
  return (static_cast<float>(mixed) - 48) / 16;
}

// Does one step, and returns its status. The results are in `sums`.
perseus_status_t do_step(int32_t codec, int rank, int step, std::vector<float>& sums,
                         const std::string& name = "gradient",
                         perseus_process_set_t set = PERSEUS_WORLD) {
  std::vector<float> values(kElements);
  for (size_t i = 0; i < kElements; ++i) values[i] = gradient(rank, step, i);
  sums.assign(kElements, 0);
  const std::vector<int64_t> shape = {static_cast<int64_t>(kElements)};
  Submission sum(PERSEUS_ALLREDUCE, name, set);
  sum.tensor(values.data(), sums.data(), shape, PERSEUS_FLOAT32);
  sum.raw.codec = codec;
  return sum.run();
}

// What ranks send and keep, in float64.
class Reference {
 public:
  explicit Reference(int ranks) : residuals_(ranks, std::vector<double>(kElements)) {}

  // The step counts on these ranks. Requires that `sums` is what they send.
  void expect(const std::vector<int>& ranks, int step, const std::vector<float>& sums) {
    for (size_t i = 0; i < kElements; ++i) {
      double sum = 0;
      for (const int rank : ranks) {
        double& residual = residuals_[rank][i];
        const double whole = gradient(rank, step, i) + residual;
        residual = whole - rounded(whole);
        sum += rounded(whole);
      }
      REQUIRE(sums[i] == sum);
    }
  }

 private:
  std::vector<std::vector<double>> residuals_;
};

void init_again() {
  REQUIRE(perseus_shutdown() == PERSEUS_OK);
  REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
}

void init_alone() {
  REQUIRE(perseus_shutdown() == PERSEUS_OK);
  perseus_init_options_t alone{};
  alone.struct_size = sizeof alone;
  alone.size = 1;
  REQUIRE(perseus_init(&alone) == PERSEUS_OK);
}

const Environment kSmallShards = {{"PERSEUS_ALLREDUCE_SHARD", "0.0625"},
                                  {"PERSEUS_ALLREDUCE_STREAMS", "1"}};

TEST(AcrossWorlds, WhatWasSentAndTheResidualAreTheSumOfTheGradientsOverAShutdown) {
  for (const int size : {1, 2, 3}) {
    World(size, kSmallShards).run([size](int rank) {
      const int32_t codec = register_quarters();
      Reference reference(size);
      std::vector<int> all;
      for (int r = 0; r < size; ++r) all.push_back(r);
      std::vector<float> sums;
      std::vector<double> sent(kElements), wanted(kElements);
      constexpr int kSteps = 9;
      for (int step = 0; step < kSteps; ++step) {
        if (step % 3 == 2) init_again();
        REQUIRE(do_step(codec, rank, step, sums) == PERSEUS_OK);
        reference.expect(all, step, sums);
        for (size_t i = 0; i < kElements; ++i) {
          sent[i] += sums[i];
          for (const int each : all) wanted[i] += gradient(each, step, i);
        }
      }
      // Each rank holds back an eighth at most, however many steps and worlds there were.
      for (size_t i = 0; i < kElements; ++i) {
        REQUIRE(std::abs(sent[i] - wanted[i]) <= size * kQuarter / 2);
      }
    });
  }
}

// Rank 1 ends in the middle of an operation, some of whose shards have ended on rank 0.
TEST(AcrossWorlds, AStepThatFailsHalfwayIsDoneAgainWithTheResidualsFromBefore) {
  for (const int encodings : {0, 3, 6, 7, 13}) {
    World(2, kSmallShards).run_bare([encodings](int rank) {
      REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
      const int32_t codec = register_quarters();
      Reference reference(2);
      std::vector<float> sums;
      for (int step = 0; step < 3; ++step) {
        REQUIRE(do_step(codec, rank, step, sums) == PERSEUS_OK);
        reference.expect({0, 1}, step, sums);
      }
      if (rank == 1) encodings_left = encodings;
      REQUIRE(do_step(codec, rank, 3, sums) != PERSEUS_OK);
      REQUIRE(rank == 0);
      init_alone();
      for (int step = 3; step < 6; ++step) {
        REQUIRE(do_step(codec, rank, step, sums) == PERSEUS_OK);
        reference.expect({0}, step, sums);
      }
      REQUIRE(perseus_shutdown() == PERSEUS_OK);
    });
  }
}

TEST(AcrossWorlds, ResidualsGoBackToTheCommitWithTheModel) {
  World(2, kSmallShards).run([](int rank) {
    const int32_t codec = register_quarters();
    Reference reference(2);
    std::vector<float> sums;
    for (int step = 0; step < 2; ++step) {
      REQUIRE(do_step(codec, rank, step, sums) == PERSEUS_OK);
      reference.expect({0, 1}, step, sums);
    }
    perseus_commit_residuals();
    for (int step = 2; step < 5; ++step) REQUIRE(do_step(codec, rank, step, sums) == PERSEUS_OK);
    perseus_restore_residuals();
    init_again();
    for (int step = 2; step < 5; ++step) {
      REQUIRE(do_step(codec, rank, step, sums) == PERSEUS_OK);
      reference.expect({0, 1}, step, sums);
    }
    perseus_forget_residuals();
    REQUIRE(do_step(codec, rank, 5, sums) == PERSEUS_OK);
    Reference(2).expect({0, 1}, 5, sums);
  });
}

// The numbers of operations without names, and the ids of sets, mean something else in another
// world.
TEST(AcrossWorlds, NoResidualGoesToAnotherTensorOfTheSameNameInAnotherWorld) {
  World(2, kSmallShards).run([](int rank) {
    const int32_t codec = register_quarters();
    const int32_t both[] = {0, 1};
    std::vector<float> sums;
    for (int world = 0; world < 2; ++world) {
      Reference of_number(2), of_set(2);
      perseus_process_set_t set = 0;
      REQUIRE(perseus_open_process_set(PERSEUS_FIRST_OPENED_SET, both, 2) == PERSEUS_OK);
      set = PERSEUS_FIRST_OPENED_SET;
      for (int step = 0; step < 2; ++step) {
        REQUIRE(do_step(codec, rank, step, sums, "allreduce.noname.1") == PERSEUS_OK);
        of_number.expect({0, 1}, step, sums);
        REQUIRE(do_step(codec, rank, step + 7, sums, "gradient", set) == PERSEUS_OK);
        of_set.expect({0, 1}, step + 7, sums);
      }
      init_again();
    }
  });
}

}  // namespace
}  // namespace perseus::test
