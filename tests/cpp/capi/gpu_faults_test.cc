// Failures on GPUs and between them: an error on every rank, in time, and never a hang. Also orders
// in which ranks could wait for each other forever.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstring>

#include "capi/gpu_memory.h"
#include "capi/world.h"
#include "sanitizers.h"

namespace perseus::test {
namespace {

using Clock = std::chrono::steady_clock;

Environment with_nccl(Environment more = {}) {
  Environment environment = {{"PERSEUS_GPU_OPERATIONS", "nccl"},
                             // As on a GPU, a collective may keep all others from running.
                             {"PERSEUS_STANDIN_ONE_COLLECTIVE", "1"}};
  environment.insert(environment.end(), more.begin(), more.end());
  return with_standin(std::move(environment));
}

Environment on_rank(int rank, Environment more) {
  more.emplace_back("PERSEUS_STANDIN_ON_RANK", std::to_string(rank));
  return with_nccl(std::move(more));
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// One float tensor on the GPU, summed in place.
class Summed {
 public:
  Summed(const TestGpu& gpu, const std::string& name, size_t count, float value,
         perseus_process_set_t set = PERSEUS_WORLD)
      : values_(gpu, std::vector<float>(count, value)),
        shape_{static_cast<int64_t>(count)},
        submission_(PERSEUS_ALLREDUCE, name, set) {
    submission_.tensor(values_.data(), values_.data(), shape_, PERSEUS_FLOAT32);
    on(gpu, submission_);
  }

  perseus_status_t run() { return submission_.run(); }
  void submit(int32_t priority = 0) {
    submission_.raw.priority = priority;
    handle_ = submission_.submit();
  }
  // The same where a fault may already have happened, which wait then reports.
  void try_to_submit() { refused_ = perseus_submit(&submission_.raw, &handle_); }
  perseus_status_t wait() {
    if (refused_ != PERSEUS_OK) return refused_;
    const perseus_status_t status = perseus_wait(handle_, -1);
    perseus_release(handle_);
    return status;
  }
  std::vector<float> values() const { return values_.read(); }
  void expect(float sum) {
    REQUIRE(wait() == PERSEUS_OK);
    for (const float value : values()) REQUIRE(value == sum);
  }

 private:
  GpuValues<float> values_;
  std::vector<int64_t> shape_;
  Submission submission_;
  perseus_handle_t handle_ = 0;
  perseus_status_t refused_ = PERSEUS_OK;
};

class GpuFaults : public testing::TestWithParam<int> {
 protected:
  int size() const { return GetParam(); }
  int last() const { return size() - 1; }
  float sum_of_ones() const { return static_cast<float>(size()); }

  // The operation fails on all ranks within `seconds`. The message contains `what`, and on the
  // other ranks names the last rank, which caused the fault.
  void expect_failure(Environment environment, const std::string& what, double seconds,
                      bool is_everybodys = false) {
    const std::string named = "rank " + std::to_string(last());
    World(size(), std::move(environment)).run([&](int rank) {
      const TestGpu gpu;
      const auto begin = Clock::now();
      // An operation that the fault does not affect, to connect.
      perseus_status_t status = Summed(gpu, "first", 1000, 1.0f).run();
      if (status == PERSEUS_OK) status = Summed(gpu, "second", 1000, 1.0f).run();
      REQUIRE(status != PERSEUS_OK);
      const std::string message = perseus_last_error();
      REQUIRE(seconds_since(begin) < seconds);
      if (rank == last()) REQUIRE(message.find(what) != std::string::npos);
      if (rank != last() && !is_everybodys) REQUIRE(message.find(named) != std::string::npos);
      // Later operations fail as well, at once.
      REQUIRE(Summed(gpu, "third", 1000, 1.0f).run() == PERSEUS_ABORTED);
    });
  }
};

TEST_P(GpuFaults, ACallOfNcclThatFails) {
  expect_failure(on_rank(last(), {{"PERSEUS_STANDIN_FAIL", "ncclAllReduce:2=3"}}), "ncclAllReduce",
                 10);
}

// One rank cannot launch its operation after the others have, while more is under way everywhere.
TEST_P(GpuFaults, WhatIsOkIsRightThoughALaunchFails) {
  for (const char* lanes : {"1", "2"}) {
    for (const char* fault : {"ncclAllReduce:3=1", "ncclAllReduce:6=1", "cuStreamWaitEvent:4=700",
                              "cuEventCreate:6=2", "cuEventCreate:9=2"}) {
      World(size(), on_rank(last(), {{"PERSEUS_STANDIN_FAIL", fault},
                                     {"PERSEUS_NCCL_LANES", lanes},
                                     {"PERSEUS_ALLREDUCE_FUSION", "0"}}))
          .run([&](int rank) {
            constexpr int kTensors = 12;
            const TestGpu gpu;
            std::vector<std::unique_ptr<Summed>> sums;
            for (int t = 0; t < kTensors; ++t) {
              const auto value = static_cast<float>(100 * t + rank);
              sums.push_back(std::make_unique<Summed>(gpu, "t" + std::to_string(t), 5000, value));
              sums.back()->try_to_submit();
            }
            const auto of_ranks = static_cast<float>(size() * (size() - 1)) / 2;
            for (int t = 0; t < kTensors; ++t) {
              const perseus_status_t status = sums[t]->wait();
              const bool must_fail = std::string_view(fault).starts_with("nccl");
              REQUIRE(t < kTensors - 1 || !must_fail || status != PERSEUS_OK);
              if (status != PERSEUS_OK) continue;
              const float expected = static_cast<float>(100 * t * size()) + of_ranks;
              for (const float value : sums[t]->values()) REQUIRE(value == expected);
            }
          });
    }
  }
}

TEST_P(GpuFaults, NcclThatDoesNotConnect) {
  expect_failure(on_rank(last(), {{"PERSEUS_STANDIN_FAIL", "ncclCommInitRankConfig:1=2"}}),
                 "connecting with NCCL", 10);
}

TEST_P(GpuFaults, AnErrorWhileACollectiveRuns) {
  expect_failure(on_rank(last(), {{"PERSEUS_STANDIN_COLLECTIVE", "2=6"}}), "a collective of NCCL",
                 10);
}

// A failure after a stream has been made to wait is not lost.
TEST_P(GpuFaults, AnErrorAfterAStreamWaits) {
  World(size(), on_rank(last(), {{"PERSEUS_STANDIN_COLLECTIVE", "2=6"}})).run([&](int) {
    const TestGpu gpu;
    REQUIRE(Summed(gpu, "first", 1000, 1.0f).run() == PERSEUS_OK);
    GpuValues<float> data(gpu, std::vector<float>(1000, 1.0f));
    const std::vector<int64_t> shape = {1000};
    Submission sum(PERSEUS_ALLREDUCE, "second");
    sum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
    standin<void(void*)>("perseus_standin_hold")(gpu.stream());
    const perseus_handle_t handle = on(gpu, sum).submit();
    perseus_wait_on_stream(handle, gpu.stream(), -1);  // either result is allowed
    standin<void(void*)>("perseus_standin_release")(gpu.stream());
    REQUIRE(perseus_wait(handle, -1) != PERSEUS_OK);
    perseus_release(handle);
    REQUIRE(Summed(gpu, "third", 1000, 1.0f).run() == PERSEUS_ABORTED);
  });
}

TEST_P(GpuFaults, ACollectiveThatHangs) {
  expect_failure(
      with_nccl({{"PERSEUS_STANDIN_COLLECTIVE", "2=hang"}, {"PERSEUS_NCCL_TIMEOUT", "1"}}),
      "PERSEUS_NCCL_TIMEOUT", 10, true);
}

TEST_P(GpuFaults, APeerThatIsKilled) {
  if (size() == 1) GTEST_SKIP() << "needs two ranks";
  World(size(), with_nccl()).run_bare([&](int rank) {
    REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
    const TestGpu gpu;
    REQUIRE(Summed(gpu, "first", 1000, 1.0f).run() == PERSEUS_OK);
    if (rank == last()) _exit(0);
    const auto begin = Clock::now();
    REQUIRE(Summed(gpu, "second", 1000, 1.0f).run() == PERSEUS_ABORTED);
    REQUIRE(std::strstr(perseus_last_error(), ("rank " + std::to_string(last())).c_str()));
    REQUIRE(seconds_since(begin) < 5);
    REQUIRE(perseus_shutdown() == PERSEUS_OK);
  });
}

TEST_P(GpuFaults, NcclOfSeveralVersionsIsNotUsed) {
  World(size(), with_nccl()).run_bare([&](int rank) {
    // Before the stand-in looks.
    if (rank == last()) setenv("PERSEUS_STANDIN_NCCL_VERSION", "22800", 1);
    REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
    const TestGpu gpu;
    const perseus_status_t status = Summed(gpu, "sum", 1000, 1.0f).run();
    if (size() == 1) {
      REQUIRE(status == PERSEUS_OK);
    } else {
      REQUIRE(status != PERSEUS_OK);
      REQUIRE(std::strstr(perseus_last_error(), "different versions of NCCL") != nullptr);
    }
    perseus_shutdown();
  });
}

TEST_P(GpuFaults, RanksThatShareAGpuGoByTheHost) {
  Environment environment = with_nccl({{"PERSEUS_STANDIN_SHARED", "1"}});
  environment.emplace_back("PERSEUS_GPU_OPERATIONS", "auto");
  World(size(), environment).run([&](int) {
    const TestGpu gpu;
    for (int step = 0; step < 3; ++step) {
      Summed sum(gpu, "sum", 100'000, 1.0f);
      sum.submit();
      sum.expect(sum_of_ones());
    }
  });
}

TEST_P(GpuFaults, ATensorOnASecondGpuFailsAloneAndOnAllRanks) {
  World(size(), with_nccl()).run([&](int rank) {
    const TestGpu gpu(0), other(1);
    REQUIRE(Summed(gpu, "first", 1000, 1.0f).run() == PERSEUS_OK);
    const bool is_mine = rank == last();
    const perseus_status_t status = Summed(is_mine ? other : gpu, "second", 1000, 1.0f).run();
    REQUIRE(status == (is_mine ? PERSEUS_INVALID_ARGUMENT : PERSEUS_MISMATCH));
    REQUIRE(std::strstr(perseus_last_error(), "its tensor is on GPU 1") != nullptr);
    REQUIRE(Summed(gpu, "third", 1000, 1.0f).run() == PERSEUS_OK);
  });
}

TEST_P(GpuFaults, OfTheFirstTensorsThoseOnASecondGpuFailAloneAndOnAllRanks) {
  World(size(), with_nccl()).run([&](int rank) {
    const TestGpu gpu(0), other(1);
    const bool is_mine = rank == last();
    Summed first(gpu, "first", 1000, 1.0f), second(is_mine ? other : gpu, "second", 1000, 1.0f);
    first.submit();
    second.submit();
    REQUIRE(second.wait() == (is_mine ? PERSEUS_INVALID_ARGUMENT : PERSEUS_MISMATCH));
    REQUIRE(std::strstr(perseus_last_error(), "its tensor is on GPU 1") != nullptr);
    first.expect(sum_of_ones());
    REQUIRE(Summed(gpu, "third", 1000, 1.0f).run() == PERSEUS_OK);
  });
}

TEST_P(GpuFaults, AStreamThatIsCapturedIsRefused) {
  World(size(), with_nccl()).run([&](int) {
    const TestGpu gpu;
    standin<void(CuStream, int)>("perseus_standin_set_capturing")(gpu.stream(), 1);
    GpuValues<float> values(gpu, 10);
    const std::vector<int64_t> shape = {10};
    Submission sum(PERSEUS_ALLREDUCE, "sum");
    sum.tensor(values.data(), values.data(), shape, PERSEUS_FLOAT32);
    REQUIRE(on(gpu, sum).run() == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(std::strstr(perseus_last_error(), "captured into a CUDA graph") != nullptr);
    standin<void(CuStream, int)>("perseus_standin_set_capturing")(gpu.stream(), 0);
  });
}

TEST_P(GpuFaults, UrgentTensorsOvertakeInOneOrderOnAllRanks) {
  World(size(), with_nccl({{"PERSEUS_CREDIT", "0.0625"}, {"PERSEUS_ALLREDUCE_FUSION", "0"}}))
      .run([&](int rank) {
        const TestGpu gpu;
        constexpr int kTensors = 40;
        for (int step = 0; step < 3; ++step) {
          std::vector<std::unique_ptr<Summed>> sums;
          for (int i = 0; i < kTensors; ++i) {
            sums.push_back(
                std::make_unique<Summed>(gpu, "t" + std::to_string(i), 10'000 + i, 1.0f));
          }
          // Each rank in its own order, with its own pauses.
          for (int i = 0; i < kTensors; ++i) {
            const int t = (i * 7 + rank * 11) % kTensors;
            sums[t]->submit(/*priority=*/t);
            if (i % 10 == rank) usleep(1000);
          }
          for (const auto& sum : sums) sum->expect(sum_of_ones());
        }
      });
}

TEST_P(GpuFaults, ProcessSetsWithRanksInCommonDoNotWaitForEachOther) {
  if (size() < 3) GTEST_SKIP() << "needs three ranks";
  World(size(), with_nccl({{"PERSEUS_CREDIT", "0.0625"}, {"PERSEUS_DYNAMIC_PROCESS_SETS", "1"}}))
      .run([&](int rank) {
        const TestGpu gpu;
        const std::vector<std::vector<int32_t>> members = {{0, 1}, {1, 2}, {0, 2}};
        std::vector<perseus_process_set_t> sets = {PERSEUS_WORLD};
        for (const auto& ranks : members) {
          sets.emplace_back();
          REQUIRE(perseus_add_process_set(ranks.data(), 2, &sets.back()) == PERSEUS_OK);
        }
        for (int step = 0; step < 5; ++step) {
          std::vector<std::unique_ptr<Summed>> sums;
          std::vector<float> expected;
          for (size_t i = 0; i < 4 * sets.size(); ++i) {
            // Each rank takes the sets in its own order.
            const perseus_process_set_t set = sets[(i + rank + step) % sets.size()];
            if (perseus_process_set_rank(set) < 0) continue;
            sums.push_back(std::make_unique<Summed>(gpu, "t" + std::to_string(i / sets.size()),
                                                    10'000, 1.0f, set));
            expected.push_back(static_cast<float>(perseus_process_set_size(set)));
            sums.back()->submit();
          }
          for (size_t i = 0; i < sums.size(); ++i) sums[i]->expect(expected[i]);
        }
      });
}

// Two hosts of two ranks. In hierarchical mode a shard has halves with communicators of their own,
// and those of several shards and process sets are under way together.
TEST(HierarchicalOnGpu, HalvesOverlapInOneOrderOnAllRanks) {
  constexpr int kRanks = 4;
  for (const char* lanes : {"1", "2", "3"}) {
    World(kRanks, with_nccl({{"PERSEUS_ALLREDUCE_MODE", "hierarchical"},
                             {"PERSEUS_NCCL_LANES", lanes},
                             {"PERSEUS_ALLREDUCE_FUSION", "0.02"},
                             {"PERSEUS_ALLREDUCE_SHARD", "0.0625"},
                             {"PERSEUS_CREDIT", "0.25"},
                             {"PERSEUS_DYNAMIC_PROCESS_SETS", "1"}}))
        .run_bare([&](int rank) {
          setenv("PERSEUS_HOSTNAME", rank < kRanks / 2 ? "first" : "second", 1);
          REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
          const TestGpu gpu;
          const int32_t crossing[] = {1, 2};
          perseus_process_set_t set = 0;
          REQUIRE(perseus_add_process_set(crossing, 2, &set) == PERSEUS_OK);
          // Some fit the ranks of a host and some do not, alone and merged.
          const std::vector<size_t> counts = {1, 3, 1000, 1001, 30'000, 40'001, 7, 20'000};
          for (int step = 0; step < (kIsSanitized ? 2 : 4); ++step) {
            std::vector<std::unique_ptr<Summed>> sums;
            std::vector<float> expected;
            for (size_t i = 0; i < 3 * counts.size(); ++i) {
              const size_t t = (i * 5 + static_cast<size_t>(rank) * 7) % (3 * counts.size());
              const bool is_of_set = t % 3 == 2;
              if (is_of_set && rank != 1 && rank != 2) continue;
              sums.push_back(std::make_unique<Summed>(gpu, "t" + std::to_string(t),
                                                      counts[t % counts.size()], 1.0f,
                                                      is_of_set ? set : PERSEUS_WORLD));
              expected.push_back(is_of_set ? 2.0f : 4.0f);
              sums.back()->submit(/*priority=*/static_cast<int32_t>(t % 4));
            }
            for (size_t i = 0; i < sums.size(); ++i) sums[i]->expect(expected[i]);
          }
          const auto calls = standin<int(const char*)>("perseus_standin_calls");
          const int all_lanes = std::atoi(lanes);
          REQUIRE(calls("ncclCommSplit") == 2 * all_lanes);
          REQUIRE(calls("ncclReduceScatter") > 0);
          REQUIRE(calls("ncclReduceScatter") == calls("ncclAllGather"));
          REQUIRE(perseus_shutdown() == PERSEUS_OK);
        });
  }
}

TEST(HierarchicalOnGpu, AHalfThatFailsIsAnErrorOnAllRanks) {
  for (const char* function : {"ncclReduceScatter:2=3", "ncclAllGather:2=3", "ncclCommSplit:2=2"}) {
    World(4, on_rank(3, {{"PERSEUS_ALLREDUCE_MODE", "hierarchical"},
                         {"PERSEUS_NCCL_LANES", "1"},
                         {"PERSEUS_STANDIN_FAIL", function}}))
        .run_bare([&](int rank) {
          setenv("PERSEUS_HOSTNAME", rank < 2 ? "first" : "second", 1);
          REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
          const TestGpu gpu;
          const auto begin = Clock::now();
          perseus_status_t status = Summed(gpu, "first", 1000, 1.0f).run();
          if (status == PERSEUS_OK) status = Summed(gpu, "second", 1000, 1.0f).run();
          // The other host's ranks may have all that they need of the second one.
          if (status == PERSEUS_OK) status = Summed(gpu, "third", 1000, 1.0f).run();
          REQUIRE(status != PERSEUS_OK);
          REQUIRE(seconds_since(begin) < 10);
          REQUIRE(perseus_shutdown() == PERSEUS_OK);
        });
  }
}

// Memory in which tensors are laid end to end is registered with NCCL, on all ranks or on none, and
// only by a version that supports it; the same holds for other functions of newer versions.
TEST_P(GpuFaults, WhatNewerVersionsHaveIsUsedWhereItIs) {
  struct Version {
    const char* number;
    bool has_registration, has_ids, has_shrink;
  };
  for (const auto& [number, has_registration, has_ids, has_shrink] :
       {Version{"21800", false, false, false}, Version{"21900", true, false, false},
        Version{"22304", true, true, false}, Version{"22700", true, true, true},
        Version{"23203", true, true, true}}) {
    const bool has_policy = has_shrink;
    Environment environment = with_nccl({{"PERSEUS_STANDIN_NCCL_VERSION", number},
                                         {"PERSEUS_NCCL_CTA_POLICY", "efficiency"},
                                         {"PERSEUS_NCCL_RANKS_PER_ROOT", "2"},
                                         {"PERSEUS_NCCL_LANES", "1"},
                                         {"PERSEUS_DYNAMIC_PROCESS_SETS", "1"}});
    if (has_policy) environment.emplace_back("PERSEUS_STANDIN_CTA_POLICY", "1");
    World(size(), environment)
        .run_bare([&, has_registration = has_registration, has_ids = has_ids,
                   has_shrink = has_shrink](int rank) {
          REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
          const TestGpu gpu;
          const int32_t members[] = {0, last()};
          perseus_process_set_t set = PERSEUS_WORLD;
          const bool has_set = size() > 2;
          if (has_set) REQUIRE(perseus_add_process_set(members, 2, &set) == PERSEUS_OK);
          for (int step = 0; step < 2; ++step) {
            // From several tensors, which are laid end to end.
            GpuValues<float> first(gpu, std::vector<float>(100, 1.0f));
            GpuValues<float> second(gpu, std::vector<float>(33, 1.0f));
            const std::vector<int64_t> shapes[] = {{100}, {33}};
            Submission both(PERSEUS_ALLREDUCE, "both");
            both.tensor(first.data(), first.data(), shapes[0], PERSEUS_FLOAT32);
            both.tensor(second.data(), second.data(), shapes[1], PERSEUS_FLOAT32);
            REQUIRE(on(gpu, both).run() == PERSEUS_OK);
            for (const float value : second.read()) REQUIRE(value == sum_of_ones());
            if (has_set && (rank == 0 || rank == last())) {
              Summed of_two(gpu, "two", 100, 1.0f, set);
              of_two.submit();
              of_two.expect(2.0f);
            }
          }
          const auto calls = standin<int(const char*)>("perseus_standin_calls");
          REQUIRE((calls("ncclCommRegister") > 0) == has_registration);
          REQUIRE((calls("ncclMemAlloc") > 0) == has_registration);
          REQUIRE((calls("ncclCommInitRankScalable") > 0) == (has_ids && size() > 2));
          const bool is_member = has_set && (rank == 0 || rank == last());
          REQUIRE(calls("ncclCommShrink") == (has_shrink && is_member ? 1 : 0));
          REQUIRE(perseus_shutdown() == PERSEUS_OK);
          REQUIRE(calls("ncclCommDeregister") == calls("ncclCommRegister"));
        });
  }
}

TEST_P(GpuFaults, OperationsOnTheCpuAndOnGpusGoSideBySide) {
  World(size(), with_nccl()).run([&](int rank) {
    const TestGpu gpu;
    for (int step = 0; step < 10; ++step) {
      Summed there(gpu, "there", 50'000, 1.0f);
      std::vector<float> here(50'000, 1.0f);
      const std::vector<int64_t> shape = {50'000};
      Submission sum(PERSEUS_ALLREDUCE, "here");
      sum.tensor(here.data(), here.data(), shape, PERSEUS_FLOAT32);
      if (rank % 2 == 0) there.submit();
      REQUIRE(sum.run() == PERSEUS_OK);
      if (rank % 2 == 1) there.submit();
      there.expect(sum_of_ones());
      for (const float value : here) REQUIRE(value == sum_of_ones());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuFaults, testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param) + "Ranks"; });

}  // namespace
}  // namespace perseus::test
