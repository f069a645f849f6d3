// The C interface from init to shutdown: ranks that leave, die or fork, and the effect on the
// others.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "capi/world.h"
#include "sanitizers.h"

namespace perseus::test {
namespace {

TEST(Lifecycle, InitAndShutdownRepeat) {
  World(2).run_bare([](int rank) {
    for (int round = 0; round < 30; ++round) {
      REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
      float value = static_cast<float>(rank);
      Submission sum(PERSEUS_ALLREDUCE, "value");
      REQUIRE(sum.tensor(&value, &value, {}, PERSEUS_FLOAT32).run() == PERSEUS_OK);
      REQUIRE(value == 1.0f);
      REQUIRE(perseus_shutdown() == PERSEUS_OK);
      REQUIRE(perseus_rank() == -1);
    }
  });
}

TEST(Lifecycle, AMalformedSettingOfOneRankIsToldToAll) {
  for (const auto& variable :
       Environment{{"PERSEUS_ALLREDUCE_STREAMS", "99"}, {"PERSEUS_THREAD_AFFINITY", "0,abc"}}) {
    World(3).run_bare([&](int rank) {
      const auto& [name, value] = variable;
      if (rank == 1) setenv(name.c_str(), value.c_str(), 1);
      REQUIRE(perseus_init(nullptr) == PERSEUS_INVALID_ARGUMENT);
      const std::string message = perseus_last_error();
      REQUIRE(message.find(name + "='" + value + "'") != std::string::npos);
      REQUIRE(rank == 1 || message.find("rank 1 on ") == 0);
      unsetenv(name.c_str());
      REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
      REQUIRE(perseus_shutdown() == PERSEUS_OK);
    });
  }
}

TEST(Lifecycle, OperationsOfARankThatLeftFailOnTheOthers) {
  // With 9 ranks not all are neighbours: the news is passed on.
  for (int size : {3, 9}) {
    World(size).run_bare([](int rank) {
      REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
      if (rank != 1) {
        float value = 1;
        Submission sum(PERSEUS_ALLREDUCE, "never");
        REQUIRE(sum.tensor(&value, &value, {}, PERSEUS_FLOAT32).run() == PERSEUS_ABORTED);
        REQUIRE(std::string(perseus_last_error()).find("rank 1 ") != std::string::npos);
      }
      REQUIRE(perseus_shutdown() == PERSEUS_OK);
    });
  }
}

// The round that it is in never ends.
TEST(Lifecycle, ASetMayBeClosedThatAnotherMemberNeverOpened) {
  World(2).run([](int rank) {
    const int32_t pair[] = {0, 1};
    const perseus_process_set_t set = PERSEUS_FIRST_OPENED_SET;
    Submission barrier(PERSEUS_BARRIER, "barrier");
    float value = 1;
    Submission sum(PERSEUS_ALLREDUCE, "never", set);
    sum.tensor(&value, &value, {}, PERSEUS_FLOAT32);
    if (rank == 0) {
      REQUIRE(perseus_open_process_set(set, pair, 2) == PERSEUS_OK);
      const perseus_handle_t handle = sum.submit();
      REQUIRE(perseus_wait(handle, 10) == PERSEUS_IN_PROGRESS);
      REQUIRE(perseus_close_process_set(set) == PERSEUS_OK);
      REQUIRE(perseus_wait(handle, 0) == PERSEUS_INVALID_ARGUMENT);
      perseus_release(handle);
    }
    REQUIRE(barrier.run() == PERSEUS_OK);
    if (rank == 1) {
      REQUIRE(perseus_open_process_set(set, pair, 2) == PERSEUS_OK);
      REQUIRE(sum.run() == PERSEUS_ABORTED);
    }
    REQUIRE(barrier.run() == PERSEUS_OK);
  });
}

// One rank leaves while a thread of each does `step` again and again; it is given a count.
template <typename Step>
void leave_in_the_middle(int size, int rank, int rounds, Step step) {
  for (int round = 0; round < rounds; ++round) {
    REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
    perseus_status_t ended = PERSEUS_OK;
    std::thread stepping([&] {
      for (int count = 0; ended == PERSEUS_OK; ++count) ended = step(count);
    });
    if (rank == round % size) {
      usleep(70 * round);
      REQUIRE(perseus_shutdown() == PERSEUS_OK);
    }
    stepping.join();
    REQUIRE(ended == PERSEUS_ABORTED || ended == PERSEUS_NOT_INITIALIZED);
    REQUIRE(perseus_shutdown() == PERSEUS_OK);
  }
}

// Many rounds show rare interleavings. A sanitizer finds faults in what any of them does.
constexpr int kRounds = kIsSanitized ? 30 : 100;

// Small ones of a known name come along with the agreement, which may come to its end by way of a
// third rank when the leaver's news has ended the operation here.
TEST(Lifecycle, ARankMayLeaveInTheMiddleOfSmallAllreduces) {
  for (int size : {3, 4}) {
    World(size).run_bare([size](int rank) {
      leave_in_the_middle(size, rank, kRounds / 2, [size](int) {
        Submission sum(PERSEUS_ALLREDUCE, "again and again");
        float input = 1, output = 0;
        const perseus_status_t status = sum.tensor(&input, &output, {}, PERSEUS_FLOAT32).run();
        const bool is_right = status != PERSEUS_OK || output == static_cast<float>(size);
        return is_right ? status : PERSEUS_INTERNAL;
      });
    });
  }
}

// The others only need the root's data, which is gone once the root has heard of the leaver: they
// must not get something else.
TEST(Lifecycle, ARankMayLeaveInTheMiddleOfBroadcasts) {
  for (int size : {3, 4}) {
    World(size).run_bare([size](int rank) {
      leave_in_the_middle(size, rank, kRounds, [size, rank](int count) {
        const int root = count % size;
        Submission broadcast(PERSEUS_BROADCAST, "from " + std::to_string(root));
        broadcast.raw.root = root;
        const auto sent = static_cast<float>(count + 1);
        float value = rank == root ? sent : -1;
        const perseus_status_t status = broadcast.tensor(&value, &value, {}, PERSEUS_FLOAT32).run();
        return status != PERSEUS_OK || value == sent ? status : PERSEUS_INTERNAL;
      });
    });
  }
}

TEST(Lifecycle, WhatWasAgreedCompletesAlthoughTheFirstToKnowLeaveAtOnce) {
  for (int repeat = 0; repeat < (kIsSanitized ? 8 : 20); ++repeat) {
    World(8).run([](int) {
      const std::vector<int64_t> shape = {100};
      std::vector<float> data(100, 1.0f);
      Submission sum(PERSEUS_ALLREDUCE, "all_links");
      REQUIRE(sum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32).run() == PERSEUS_OK);
      Submission barrier(PERSEUS_BARRIER, "last");
      REQUIRE(barrier.run() == PERSEUS_OK);
    });
  }
}

TEST(Lifecycle, ADeadRankEndsTheOperationsOfAllOthersLongBeforeAnyTimeOut) {
  for (int size : {4, 9}) {
    auto* initialized = static_cast<std::atomic<int>*>(mmap(nullptr, sizeof(std::atomic<int>),
                                                            PROT_READ | PROT_WRITE,
                                                            MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    World(size).run_bare([=](int rank) {
      REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
      initialized->fetch_add(1);
      if (rank == 2) {
        while (initialized->load() < size) std::this_thread::yield();
        _exit(0);
      }
      const auto start = std::chrono::steady_clock::now();
      float value = 1;
      Submission sum(PERSEUS_ALLREDUCE, "never");
      perseus_handle_t handle = 0;
      if (perseus_submit(&sum.tensor(&value, &value, {}, PERSEUS_FLOAT32).raw, &handle) ==
          PERSEUS_OK) {
        REQUIRE(perseus_wait(handle, -1) == PERSEUS_ABORTED);
      }
      REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(10));
      REQUIRE(std::string(perseus_last_error()).find("rank 2 ") != std::string::npos);
      REQUIRE(perseus_shutdown() == PERSEUS_OK);
    });
  }
}

TEST(Lifecycle, AForkedChildMustNotTakeItsParentsRank) {
  World(3).run([](int) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      const bool is_refused = perseus_init(nullptr) == PERSEUS_INVALID_ARGUMENT;
      _exit(is_refused && perseus_is_initialized() == 0 ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    Submission barrier(PERSEUS_BARRIER, "after");
    REQUIRE(barrier.run() == PERSEUS_OK);
  });
}

TEST(Lifecycle, AForkedChildHasNoEngineAndEndsInPeace) {
  World(2).run([](int rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      _exit(perseus_is_initialized() == 0 && perseus_shutdown() == PERSEUS_OK ? 0 : 1);
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child && status == 0);
    float value = static_cast<float>(rank);
    Submission sum(PERSEUS_ALLREDUCE, "after");
    REQUIRE(sum.tensor(&value, &value, {}, PERSEUS_FLOAT32).run() == PERSEUS_OK);
    REQUIRE(value == 1.0f);
  });
}

}  // namespace
}  // namespace perseus::test
