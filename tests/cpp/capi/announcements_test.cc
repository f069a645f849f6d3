// perseus.h: announcements. All ranks must read the same number at the same point of the program,
// whatever kind of operation brings it.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "capi/gpu_memory.h"
#include "capi/world.h"

namespace perseus::test {
namespace {

perseus_status_t barrier(const std::string& name, perseus_process_set_t set = PERSEUS_WORLD) {
  return Submission(PERSEUS_BARRIER, name, set).run();
}

// Every rank gives and gets `count` floats, or for an allgather, `count` from each rank.
perseus_handle_t begin(perseus_operation_t kind, int64_t count, std::vector<float>& data,
                       perseus_process_set_t set = PERSEUS_WORLD) {
  data.assign(static_cast<size_t>(count), 1.0f);
  const std::vector<int64_t> shape = {count};
  Submission submission(kind, "of " + std::to_string(count), set);
  const bool is_in_place = kind == PERSEUS_ALLREDUCE || kind == PERSEUS_BROADCAST;
  if (kind != PERSEUS_BARRIER && kind != PERSEUS_JOIN) {
    submission.tensor(data.data(), is_in_place ? data.data() : nullptr, shape, PERSEUS_FLOAT32);
  }
  return submission.submit();
}

void run(perseus_operation_t kind, int64_t count, perseus_process_set_t set = PERSEUS_WORLD) {
  std::vector<float> data;
  const perseus_handle_t handle = begin(kind, count, data, set);
  REQUIRE(perseus_wait(handle, -1) == PERSEUS_OK);
  perseus_release(handle);
}

constexpr int64_t kSmall = 1, kNotSoSmall = 3000, kLarge = 500'000;

// Returns whether all ranks give the same numbers.
bool are_same(const std::vector<int64_t>& own) {
  const std::vector<int64_t> shape = {static_cast<int64_t>(own.size())};
  Submission gather(PERSEUS_ALLGATHER, "records");
  const perseus_handle_t handle = gather.tensor(own.data(), nullptr, shape, PERSEUS_INT64).submit();
  const auto* of_all = static_cast<const int64_t*>(wait_for_result(handle).data);
  bool same = true;
  for (size_t i = 0; i < own.size() * static_cast<size_t>(perseus_size()); ++i) {
    same &= of_all[i] == own[i % own.size()];
  }
  perseus_release(handle);
  return same;
}

class AnnouncementsOfRanks : public testing::TestWithParam<int> {
 protected:
  // Between init and shutdown. `next()` is a number above all before, the same on all ranks.
  void run_ranks(const std::function<void(int rank, const std::function<uint64_t()>& next)>& body,
                 Environment environment = {}) {
    World(GetParam(), std::move(environment)).run([&](int rank) {
      uint64_t number = 0;
      body(rank, [&number] { return number += 3; });
    });
  }
  int size() const { return GetParam(); }
};

TEST_P(AnnouncementsOfRanks, EveryKindOfOperationCarriesWhatWasAnnouncedBefore) {
  run_ranks([&](int rank, const auto& next) {
    REQUIRE(perseus_announced() == 0);
    const auto carries = [&](const std::function<void()>& operation) {
      for (int announcer = 0; announcer < size(); ++announcer) {
        const uint64_t number = next();
        const uint64_t before = perseus_announced();
        if (rank == announcer) REQUIRE(perseus_announce(number) == PERSEUS_OK);
        REQUIRE(perseus_announced() == before);
        operation();
        REQUIRE(perseus_announced() == number);
      }
    };
    for (const perseus_operation_t kind : {PERSEUS_ALLREDUCE, PERSEUS_BROADCAST, PERSEUS_ALLGATHER,
                                           PERSEUS_ALLTOALL, PERSEUS_REDUCESCATTER}) {
      for (const int64_t count : {int64_t{0}, kSmall, kNotSoSmall, kLarge}) {
        carries([&] { run(kind, count * size()); });
      }
    }
    carries([&] { run(PERSEUS_BARRIER, 0); });
    carries([&] { run(PERSEUS_JOIN, 0); });
    carries([&] {
      const std::vector<int32_t> first = {0};
      if (size() == 1) return run(PERSEUS_BARRIER, 0);
      perseus_process_set_t set = 0;
      REQUIRE(perseus_add_process_set(first.data(), 1, &set) == PERSEUS_OK);
      const uint64_t number = perseus_announced();
      REQUIRE(perseus_remove_process_set(set) == PERSEUS_OK);
      REQUIRE(perseus_announced() == number);
    });
    // Several at once.
    carries([&] {
      std::vector<std::vector<float>> data(8);
      std::vector<perseus_handle_t> handles;
      for (int64_t i = 0; i < 8; ++i) handles.push_back(begin(PERSEUS_ALLREDUCE, 100 + i, data[i]));
      for (const perseus_handle_t handle : handles) {
        REQUIRE(perseus_wait(handle, -1) == PERSEUS_OK);
        perseus_release(handle);
      }
    });
  });
}

TEST_P(AnnouncementsOfRanks, AreReadAlikeHoweverTheyFallIntoTheProgram) {
  run_ranks([&](int rank, const auto&) {
    std::thread announcer([rank] {
      std::mt19937 random(static_cast<uint32_t>(rank));
      for (uint64_t number = 1; number <= 40; ++number) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 700));
        REQUIRE(perseus_announce(100 * number + static_cast<uint64_t>(rank)) == PERSEUS_OK);
      }
    });
    std::vector<int64_t> seen;
    const auto record = [&] { seen.push_back(static_cast<int64_t>(perseus_announced())); };
    for (int step = 0; step < 60; ++step) {
      run(PERSEUS_ALLREDUCE, kSmall);
      record();
      run(PERSEUS_BARRIER, 0);
      record();
      run(PERSEUS_ALLGATHER, step % 2 == 0 ? kSmall : kNotSoSmall);
      record();
      std::vector<float> first, second;
      const perseus_handle_t handles[] = {begin(PERSEUS_ALLREDUCE, kNotSoSmall, first),
                                          begin(PERSEUS_BROADCAST, 1, second)};
      for (const perseus_handle_t handle : handles) {
        REQUIRE(perseus_wait(handle, -1) == PERSEUS_OK);
        perseus_release(handle);
      }
      record();
    }
    announcer.join();
    run(PERSEUS_BARRIER, 0);
    record();
    REQUIRE(seen.back() == 4000 + size() - 1);
    REQUIRE(are_same(seen));
  });
}

TEST_P(AnnouncementsOfRanks, OperationsOfOtherSetsDoNotCarryThem) {
  if (size() == 1) GTEST_SKIP() << "a rank alone has no other set than the world";
  run_ranks([&](int rank, const auto& next) {
    const std::vector<int32_t> members = {0, size() - 1};
    perseus_process_set_t added = 0;
    if (size() > 2) {
      REQUIRE(perseus_add_process_set(members.data(), 2, &added) == PERSEUS_OK);
    }
    const perseus_process_set_t opened = PERSEUS_FIRST_OPENED_SET;
    const bool is_member = rank == members[0] || rank == members[1];
    const uint64_t number = next();
    REQUIRE(perseus_announce(number) == PERSEUS_OK);
    if (is_member) {
      REQUIRE(perseus_open_process_set(opened, members.data(), 2) == PERSEUS_OK);
      for (const perseus_process_set_t set : {added, opened}) {
        if (set == PERSEUS_WORLD) continue;
        run(PERSEUS_ALLREDUCE, kSmall, set);
        run(PERSEUS_ALLGATHER, kLarge, set);
        REQUIRE(barrier("of members", set) == PERSEUS_OK);
      }
      REQUIRE(perseus_close_process_set(opened) == PERSEUS_OK);
    }
    REQUIRE(perseus_announced() == 0);
    REQUIRE(barrier("of all") == PERSEUS_OK);
    REQUIRE(perseus_announced() == number);
  });
}

TEST_P(AnnouncementsOfRanks, ComeBeforeTheCallback) {
  for (const perseus_callback_thread_t where :
       {PERSEUS_CALLBACK_IN_LIBRARY, PERSEUS_CALLBACK_IN_WAIT}) {
    run_ranks([&](int, const auto& next) {
      for (int i = 0; i < 20; ++i) {
        const uint64_t number = next();
        REQUIRE(perseus_announce(number) == PERSEUS_OK);
        std::atomic<uint64_t> seen{0};
        std::atomic<bool> is_called{false};
        struct Places {
          std::atomic<uint64_t>& seen;
          std::atomic<bool>& is_called;
        } places{seen, is_called};
        Submission submission(PERSEUS_BARRIER, "with a callback");
        submission.raw.callback_thread = where;
        submission.raw.user = &places;
        submission.raw.callback = [](void* user, perseus_handle_t, perseus_status_t, const char*) {
          auto& its = *static_cast<Places*>(user);
          its.seen = perseus_announced();
          its.is_called = true;
        };
        REQUIRE(submission.run() == PERSEUS_OK);
        while (!is_called) std::this_thread::yield();
        REQUIRE(seen == number);
      }
    });
  }
}

TEST_P(AnnouncementsOfRanks, OnlyRiseAndBeginAnewWithTheWorld) {
  run_ranks([&](int rank, const auto&) {
    REQUIRE(perseus_announce(7) == PERSEUS_OK);
    REQUIRE(perseus_announce(5) == PERSEUS_OK);
    REQUIRE(barrier("first") == PERSEUS_OK);
    REQUIRE(perseus_announced() == 7);
    REQUIRE(perseus_announce(6) == PERSEUS_OK);
    REQUIRE(barrier("second") == PERSEUS_OK);
    REQUIRE(perseus_announced() == 7);
    REQUIRE(perseus_announce(UINT64_MAX) == PERSEUS_OK);
    REQUIRE(barrier("third") == PERSEUS_OK);
    REQUIRE(perseus_announced() == UINT64_MAX);

    REQUIRE(perseus_shutdown() == PERSEUS_OK);
    REQUIRE(perseus_announce(1) == PERSEUS_NOT_INITIALIZED);
    REQUIRE(perseus_announced() == 0);
    REQUIRE(perseus_init(nullptr) == PERSEUS_OK);
    REQUIRE(perseus_announced() == 0);
    REQUIRE(barrier("of the next world") == PERSEUS_OK);
    REQUIRE(perseus_announced() == 0);
    if (rank == 0) REQUIRE(perseus_announce(2) == PERSEUS_OK);
    REQUIRE(barrier("of the next world") == PERSEUS_OK);
    REQUIRE(perseus_announced() == 2);
  });
}

TEST_P(AnnouncementsOfRanks, AFailedOperationCountsForNothing) {
  if (size() == 1) GTEST_SKIP() << "one rank cannot differ from itself";
  run_ranks([&](int rank, const auto& next) {
    const uint64_t number = next();
    REQUIRE(perseus_announce(number) == PERSEUS_OK);
    std::vector<float> data(2, 1.0f);
    const std::vector<int64_t> shape = {rank == 0 ? 1 : 2};
    Submission sum(PERSEUS_ALLREDUCE, "sum");
    REQUIRE(sum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32).run() == PERSEUS_MISMATCH);
    REQUIRE(perseus_announced() == 0);
    REQUIRE(barrier("next") == PERSEUS_OK);
    REQUIRE(perseus_announced() == number);
  });
}

TEST_P(AnnouncementsOfRanks, AnOperationThatFailsOnceItIsAgreedOnCountsForNothing) {
  run_ranks([&](int, const auto& next) {
    const uint64_t number = next();
    REQUIRE(perseus_announce(number) == PERSEUS_OK);
    const float scalar = 1.0f;
    const std::vector<int64_t> no_shape;
    Submission gather(PERSEUS_ALLGATHER, "of scalars");
    REQUIRE(gather.tensor(&scalar, nullptr, no_shape, PERSEUS_FLOAT32).run() ==
            PERSEUS_UNSUPPORTED);
    REQUIRE(perseus_announced() == 0);
    REQUIRE(barrier("next") == PERSEUS_OK);
    REQUIRE(perseus_announced() == number);
  });
}

// A rank that has joined takes part in rounds without an operation of its own.
TEST_P(AnnouncementsOfRanks, AreCarriedByOperationsOfOthersAfterAJoin) {
  run_ranks([&](int rank, const auto&) {
    Submission join(PERSEUS_JOIN, "join");
    const auto first = static_cast<uint64_t>(size() - 1);
    if (rank == static_cast<int>(first)) {
      REQUIRE(perseus_announce(11) == PERSEUS_OK);
      REQUIRE(join.run() == PERSEUS_OK);
    } else {
      for (int i = 0; i < 3; ++i) run(PERSEUS_ALLREDUCE, kSmall);
      REQUIRE(perseus_announced() == 11);
      REQUIRE(join.run() == PERSEUS_OK);
    }
    REQUIRE(perseus_announced() == 11);
  });
}

TEST_P(AnnouncementsOfRanks, CountOnceAStreamWaitsForTheResults) {
  run_ranks(
      [&](int rank, const auto& next) {
        const TestGpu gpu;
        GpuValues<float> data(gpu, std::vector<float>(1000, 1.0f));
        const std::vector<int64_t> shape = {1000};
        standin<void(void*)>("perseus_standin_hold")(gpu.stream());
        const uint64_t number = next();
        if (rank == 0) REQUIRE(perseus_announce(number) == PERSEUS_OK);
        Submission sum(PERSEUS_ALLREDUCE, "sum");
        sum.tensor(data.data(), data.data(), shape, PERSEUS_FLOAT32);
        const perseus_handle_t handle = on(gpu, sum).submit();
        const TestGpu::Current current(gpu);
        CuStream consumer = nullptr;
        REQUIRE_CUDA(cuda().create_stream(&consumer, kCuStreamNonBlocking, 0));
        REQUIRE(perseus_wait_on_stream(handle, consumer, -1) == PERSEUS_OK);
        REQUIRE(perseus_poll(handle) == 0);
        REQUIRE(perseus_announced() == number);
        standin<void(void*)>("perseus_standin_release")(gpu.stream());
        REQUIRE(perseus_wait(handle, -1) == PERSEUS_OK);
        REQUIRE(perseus_announced() == number);
        perseus_release(handle);
      },
      with_standin({{"PERSEUS_GPU_OPERATIONS", "nccl"}}));
}

INSTANTIATE_TEST_SUITE_P(Sizes, AnnouncementsOfRanks, testing::Values(1, 2, 3, 4));

TEST(Announcements, NeedAJob) {
  EXPECT_EQ(perseus_announce(1), PERSEUS_NOT_INITIALIZED);
  EXPECT_EQ(perseus_announced(), 0u);
}

// The two ranks agree on nothing.
TEST(Announcements, AMessageBetweenTwoRanksCarriesNone) {
  World(2).run([](int rank) {
    REQUIRE(barrier("begin") == PERSEUS_OK);
    REQUIRE(perseus_announce(3) == PERSEUS_OK);
    float value = 0;
    const perseus_tensor_t tensor{&value, &value, nullptr, 0, PERSEUS_FLOAT32};
    perseus_transfer_t message{};
    message.struct_size = sizeof message;
    message.peer = 1 - rank;
    message.tensor = &tensor;
    perseus_handle_t handles[2];
    REQUIRE(perseus_send(&message, &handles[0]) == PERSEUS_OK);
    REQUIRE(perseus_recv(&message, &handles[1]) == PERSEUS_OK);
    for (const perseus_handle_t handle : handles) {
      REQUIRE(perseus_wait(handle, -1) == PERSEUS_OK);
      perseus_release(handle);
    }
    REQUIRE(perseus_announced() == 0);
    REQUIRE(barrier("end") == PERSEUS_OK);
    REQUIRE(perseus_announced() == 3);
  });
}

}  // namespace
}  // namespace perseus::test
