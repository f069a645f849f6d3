// perseus_run: operations that are submitted and awaited in one call. Whether ranks meet in a roll
// call or go the usual way depends on the moment, so most tests are about results alone, and do the
// same many times.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "capi/world.h"
#include "sanitizers.h"

namespace perseus::test {
namespace {

constexpr int kCalls = kIsSanitized ? 200 : 2000;

uint64_t roll_calls() {
  uint64_t found = 0;
  REQUIRE(perseus_counters(
              [](void* user, const char* name, uint64_t value) {
                if (std::strcmp(name, "roll_calls") == 0) *static_cast<uint64_t*>(user) = value;
              },
              &found) == PERSEUS_OK);
  return found;
}

// One tensor, whose elements are numbers that this rank and call have alone.
template <typename T>
class Call {
 public:
  Call(perseus_operation_t operation, perseus_dtype_t dtype, int64_t elements)
      : shape_({elements}),
        in_(static_cast<size_t>(elements)),
        out_(in_.size()),
        submission_(operation, std::to_string(dtype) + " of " + std::to_string(elements)) {
    submission_.tensor(in_.data(), out_.data(), shape_, dtype);
  }
  perseus_submission_t& raw() { return submission_.raw; }
  const std::vector<T>& result() const { return out_; }
  void fill(int call) {
    for (size_t i = 0; i < in_.size(); ++i) in_[i] = value_of(perseus_rank(), call, i);
  }
  static T value_of(int rank, int call, size_t i) {
    return static_cast<T>((rank + 1) * (call % 5 + 1) + static_cast<int>(i % 7));
  }
  perseus_status_t run() { return perseus_run(&submission_.raw, -1, nullptr); }
  perseus_status_t submit_and_wait() { return submission_.run(); }

 private:
  std::vector<int64_t> shape_;
  std::vector<T> in_, out_;
  Submission submission_;
};

template <typename T>
void expect_sum(const Call<T>& call, int number) {
  for (size_t i = 0; i < call.result().size(); ++i) {
    T sum = 0;
    for (int rank = 0; rank < perseus_size(); ++rank) {
      sum = static_cast<T>(sum + Call<T>::value_of(rank, number, i));
    }
    REQUIRE(call.result()[i] == sum);
  }
}

void barrier() { REQUIRE(Submission(PERSEUS_BARRIER, "barrier").run() == PERSEUS_OK); }

class RunTest : public testing::TestWithParam<int> {
 protected:
  void run(const std::function<void(int rank)>& body) { World(GetParam()).run(body); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, RunTest, testing::Values(1, 2, 3, 4),
                         [](const auto& info) { return std::to_string(info.param); });

TEST_P(RunTest, SumsOfEachSizeAreRight) {
  run([](int) {
    for (const int64_t elements : {0, 1, 3, 4, 5, 250, 1000, 1024, 1025, 5000}) {
      Call<float> floats(PERSEUS_ALLREDUCE, PERSEUS_FLOAT32, elements);
      Call<int64_t> integers(PERSEUS_ALLREDUCE, PERSEUS_INT64, elements);
      for (int call = 0; call < kCalls / 10; ++call) {
        floats.fill(call);
        integers.fill(call);
        REQUIRE(floats.run() == PERSEUS_OK);
        REQUIRE(integers.run() == PERSEUS_OK);
        expect_sum(floats, call);
        expect_sum(integers, call);
      }
    }
  });
}

// The same bits as the usual way, which is compared with float64 elsewhere.
TEST_P(RunTest, EachReductionAndTypeIsThatOfSubmit) {
  run([](int rank) {
    for (int32_t dtype = PERSEUS_FLOAT32; dtype <= PERSEUS_BOOL; ++dtype) {
      for (int32_t op = PERSEUS_AVERAGE; op <= PERSEUS_BITWISE_XOR; ++op) {
        std::vector<unsigned char> in(8 * 40), usual(in.size()), quick(in.size());
        for (size_t i = 0; i < in.size(); ++i) {
          in[i] =
              static_cast<unsigned char>(dtype == PERSEUS_BOOL ? (i + rank) % 2 : 13 * i + rank);
        }
        const std::vector<int64_t> shape = {5, 8};
        const std::string name = std::to_string(dtype) + " " + std::to_string(op);
        Submission by_submit(PERSEUS_ALLREDUCE, name);
        by_submit.raw.reduce_op = op;
        by_submit.tensor(in.data(), usual.data(), shape, dtype);
        Submission by_run(PERSEUS_ALLREDUCE, name);
        by_run.raw.reduce_op = op;
        by_run.tensor(in.data(), quick.data(), shape, dtype);
        const perseus_status_t status = by_submit.run();
        for (int call = 0; call < 10; ++call) {
          REQUIRE(perseus_run(&by_run.raw, -1, nullptr) == status);
          REQUIRE(usual == quick);
        }
      }
    }
  });
}

TEST_P(RunTest, BroadcastsAndBarriersAreRight) {
  run([](int rank) {
    for (int call = 0; call < kCalls; ++call) {
      const int root = call % perseus_size();
      const std::vector<int64_t> shape = {call % 3 == 0 ? 2 : 600};
      std::vector<int32_t> in(600, rank * kCalls + call), out(600);
      Submission broadcast(PERSEUS_BROADCAST, "values");
      broadcast.raw.root = root;
      broadcast.tensor(in.data(), out.data(), shape, PERSEUS_INT32);
      REQUIRE(perseus_run(&broadcast.raw, -1, nullptr) == PERSEUS_OK);
      for (int64_t i = 0; i < shape[0]; ++i) {
        REQUIRE(out[static_cast<size_t>(i)] == root * kCalls + call);
      }
      Submission together(PERSEUS_BARRIER, "together");
      REQUIRE(perseus_run(&together.raw, -1, nullptr) == PERSEUS_OK);
    }
  });
}

// Two ranks need no agreement: the counters of operations count, and no message is sent.
TEST(RollCallsOfTwoTest, NeedNoAgreement) {
  World(2).run([](int) {
    Call<float> call(PERSEUS_ALLREDUCE, PERSEUS_FLOAT32, 1);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (roll_calls() < 1000) {
      REQUIRE(std::chrono::steady_clock::now() < until);
      call.fill(0);
      REQUIRE(call.run() == PERSEUS_OK);
      expect_sum(call, 0);
    }
  });
}

// Ranks that submit and ranks that run meet all the same.
TEST_P(RunTest, MatchesWhatAnotherRankSubmits) {
  run([](int rank) {
    Call<float> call(PERSEUS_ALLREDUCE, PERSEUS_FLOAT32, 4);
    for (int number = 0; number < kCalls; ++number) {
      call.fill(number);
      const bool runs = (number / 16 + rank) % 3 != 0;
      REQUIRE((runs ? call.run() : call.submit_and_wait()) == PERSEUS_OK);
      expect_sum(call, number);
    }
  });
}

TEST_P(RunTest, ThreadsMayCallInAnyOrder) {
  run([](int) {
    const auto loop = [](int64_t elements) {
      Call<float> call(PERSEUS_ALLREDUCE, PERSEUS_FLOAT32, elements);
      for (int number = 0; number < kCalls; ++number) {
        call.fill(number);
        REQUIRE(call.run() == PERSEUS_OK);
        expect_sum(call, number);
      }
    };
    std::thread other(loop, 3);
    loop(1);
    other.join();
  });
}

// Large operations are under way all the time.
TEST_P(RunTest, WorksBesideOperationsUnderWay) {
  run([](int) {
    Call<float> small(PERSEUS_ALLREDUCE, PERSEUS_FLOAT32, 2);
    std::vector<float> data(300'000, 1.0f);
    const std::vector<int64_t> shape = {300'000};
    Submission large(PERSEUS_ALLREDUCE, "large");
    large.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
    for (int number = 0; number < kCalls / 20; ++number) {
      const perseus_handle_t handle = large.submit();
      for (int call = 0; call < 5; ++call) {
        small.fill(call);
        REQUIRE(small.run() == PERSEUS_OK);
        expect_sum(small, call);
      }
      REQUIRE(perseus_wait(handle, -1) == PERSEUS_OK);
      perseus_release(handle);
    }
  });
}

TEST_P(RunTest, CallsThatDifferFailOnAllRanks) {
  if (GetParam() == 1) GTEST_SKIP() << "there is nobody to differ from";
  run([](int rank) {
    for (int number = 0; number < kCalls / 10; ++number) {
      Call<float> call(PERSEUS_ALLREDUCE, PERSEUS_FLOAT32, 4);
      call.raw().reduce_op = rank == 0 ? PERSEUS_MAX : PERSEUS_MIN;
      REQUIRE(call.run() == PERSEUS_MISMATCH);
      call.raw().reduce_op = PERSEUS_SUM;
      call.fill(number);
      REQUIRE(call.run() == PERSEUS_OK);
      expect_sum(call, number);
    }
  });
}

// A rank's call with wrong arguments meets that call of the others, and not the next one.
TEST_P(RunTest, ACallThatIsRefusedFailsOnAllRanks) {
  run([](int rank) {
    Call<float> call(PERSEUS_ALLREDUCE, PERSEUS_FLOAT32, 4);
    for (int number = 0; number < kCalls / 10; ++number) {
      call.raw().reduce_op = rank == 0 ? 99 : PERSEUS_SUM;
      const perseus_status_t status = call.run();
      REQUIRE(status == (rank == 0 ? PERSEUS_INVALID_ARGUMENT : PERSEUS_MISMATCH));
      REQUIRE(last_error_has("there is no reduce operation 99"));
      call.raw().reduce_op = PERSEUS_SUM;
      for (int again = 0; again < 3; ++again) {
        call.fill(again);
        REQUIRE(call.run() == PERSEUS_OK);
        expect_sum(call, again);
      }
    }
  });
}

TEST(RunArgumentsTest, NeedMemoryForTheResult) {
  World(2).run([](int) {
    const std::vector<int64_t> shape = {2};
    const std::vector<float> data(2);
    Submission allreduce(PERSEUS_ALLREDUCE, "no output");
    allreduce.tensor(data.data(), nullptr, shape, PERSEUS_FLOAT32);
    REQUIRE(perseus_run(&allreduce.raw, -1, nullptr) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(last_error_has("'no output'") && last_error_has("use perseus_submit"));
    Submission allgather(PERSEUS_ALLGATHER, "gathered");
    allgather.tensor(data.data(), nullptr, shape, PERSEUS_FLOAT32);
    REQUIRE(perseus_run(&allgather.raw, -1, nullptr) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(last_error_has("is not known in advance"));
    Submission join(PERSEUS_JOIN, "join");
    REQUIRE(perseus_run(&join.raw, -1, nullptr) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(perseus_run(nullptr, -1, nullptr) == PERSEUS_INVALID_ARGUMENT);
    Submission timed(PERSEUS_BARRIER, "timed");
    REQUIRE(perseus_run(&timed.raw, 10, nullptr) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(last_error_has("the place for the handle is missing"));
    barrier();
  });
}

TEST(RunTimeOutTest, LeavesAHandle) {
  World(2).run([](int rank) {
    Call<float> call(PERSEUS_ALLREDUCE, PERSEUS_FLOAT32, 4);
    call.fill(3);
    perseus_handle_t handle = -1;
    if (rank == 0) {
      REQUIRE(perseus_run(&call.raw(), 1, &handle) == PERSEUS_IN_PROGRESS);
      REQUIRE(handle > 0);
      // The name is taken until the operation is done.
      REQUIRE(call.run() == PERSEUS_DUPLICATE_NAME);
    }
    barrier();
    if (rank == 0) {
      REQUIRE(perseus_wait(handle, -1) == PERSEUS_OK);
      perseus_release(handle);
    } else {
      REQUIRE(perseus_run(&call.raw(), 60'000, &handle) == PERSEUS_OK);
      REQUIRE(handle == 0);
    }
    expect_sum(call, 3);
  });
}

TEST(RunCallbackTest, RunsTheCallbackAndMayNotBeCalledInOne) {
  World(2).run([](int) {
    std::atomic<int> calls{0};
    for (int number = 0; number < 100; ++number) {
      Call<float> call(PERSEUS_ALLREDUCE, PERSEUS_FLOAT32, 4);
      call.fill(number);
      call.raw().user = &calls;
      call.raw().callback = [](void* user, perseus_handle_t, perseus_status_t status, const char*) {
        REQUIRE(status == PERSEUS_OK);
        Submission barrier(PERSEUS_BARRIER, "within");
        REQUIRE(perseus_run(&barrier.raw, -1, nullptr) == PERSEUS_INVALID_ARGUMENT);
        REQUIRE(last_error_has("a callback may not wait"));
        ++*static_cast<std::atomic<int>*>(user);
      };
      REQUIRE(call.run() == PERSEUS_OK);
      expect_sum(call, number);
    }
    while (calls != 100) std::this_thread::yield();
  });
}

// All ranks read the same number after the same call.
TEST_P(RunTest, BringsAnnouncements) {
  run([](int rank) {
    Call<int64_t> call(PERSEUS_ALLREDUCE, PERSEUS_INT64, 1);
    std::vector<int64_t> seen, lowest(kCalls), highest(kCalls);
    for (int number = 0; number < kCalls; ++number) {
      if (number % perseus_size() == rank) {
        REQUIRE(perseus_announce(static_cast<uint64_t>(number)) == PERSEUS_OK);
      }
      REQUIRE(call.run() == PERSEUS_OK);
      seen.push_back(static_cast<int64_t>(perseus_announced()));
    }
    const std::vector<int64_t> shape = {kCalls};
    for (auto& [op, out] : {std::pair(PERSEUS_MIN, &lowest), std::pair(PERSEUS_MAX, &highest)}) {
      Submission compare(PERSEUS_ALLREDUCE, "seen");
      compare.raw.reduce_op = op;
      compare.tensor(seen.data(), out->data(), shape, PERSEUS_INT64);
      REQUIRE(compare.run() == PERSEUS_OK);
    }
    REQUIRE(lowest == highest);
    REQUIRE(seen.back() == kCalls - 1);
  });
}

// Those that have joined have made fewer calls; afterwards all meet again.
TEST(RunJoinTest, RollCallsGoOnAfterAJoin) {
  World(2).run([](int rank) {
    Call<float> call(PERSEUS_ALLREDUCE, PERSEUS_FLOAT32, 1);
    for (int number = 0; number < (rank == 0 ? 30 : 10); ++number) {
      REQUIRE(call.run() == PERSEUS_OK);
    }
    REQUIRE(Submission(PERSEUS_JOIN, "join").run() == PERSEUS_OK);
    const uint64_t before = roll_calls();
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (roll_calls() < before + 100) {
      REQUIRE(std::chrono::steady_clock::now() < until);
      call.fill(1);
      REQUIRE(call.run() == PERSEUS_OK);
      expect_sum(call, 1);
    }
  });
}

// The last rank ends without a word; the others must not wait for it.
TEST_P(RunTest, EndsWhenARankHasDied) {
  if (GetParam() == 1) GTEST_SKIP() << "there is nobody to die";
  World(GetParam()).run_bare([](int rank) {
    REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
    const bool dies = rank == perseus_size() - 1;
    Call<float> call(PERSEUS_ALLREDUCE, PERSEUS_FLOAT32, 1);
    perseus_status_t status = PERSEUS_OK;
    for (int number = 0; status == PERSEUS_OK; ++number) {
      if (dies && number == kCalls) _exit(0);
      status = call.run();
    }
    REQUIRE(status == PERSEUS_ABORTED);
    REQUIRE(perseus_shutdown() == PERSEUS_OK);
  });
}

}  // namespace
}  // namespace perseus::test
