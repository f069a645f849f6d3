// One name that stands for different operations on different ranks: an error on all of them.
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "capi/world.h"

namespace perseus::test {
namespace {

const Environment kImpatient = {{"PERSEUS_NAME_CONFLICT_TIME_SECONDS", "1"}};
const std::vector<int64_t> kShape = {4};

perseus_status_t run_one(perseus_operation_t operation, const std::string& name,
                         perseus_process_set_t set = PERSEUS_WORLD) {
  std::vector<float> data(4, 1.0f);
  Submission submission(operation, name, set);
  return submission.tensor(data.data(), data.data(), kShape, PERSEUS_FLOAT32).run();
}

bool last_error_says(const std::string& text) {
  return std::string(perseus_last_error()).find(text) != std::string::npos;
}

class NameConflicts : public testing::TestWithParam<int> {};

TEST_P(NameConflicts, TwoKindsOfOperation) {
  World(GetParam(), kImpatient).run([&](int rank) {
    for (int time = 0; time < 2; ++time) {
      REQUIRE(run_one(rank == 0 ? PERSEUS_BROADCAST : PERSEUS_ALLREDUCE, "x") == PERSEUS_MISMATCH);
      REQUIRE(last_error_says("broadcast.x"));
      REQUIRE(last_error_says("allreduce.x"));
      REQUIRE(last_error_says(rank == 0 ? "rank 1 could not" : "rank 0 could not"));
    }
    // And the job goes on, also under that name.
    REQUIRE(run_one(PERSEUS_ALLREDUCE, "x") == PERSEUS_OK);
    REQUIRE(run_one(PERSEUS_BROADCAST, "x") == PERSEUS_OK);
  });
}

TEST_P(NameConflicts, AGroupAndATensorAlone) {
  World(GetParam(), kImpatient).run([&](int rank) {
    const std::string name = rank == 0 ? "grouped_allreduce.x" : "allreduce.x";
    REQUIRE(run_one(PERSEUS_ALLREDUCE, name) == PERSEUS_MISMATCH);
    REQUIRE(last_error_says("'grouped_allreduce.x'"));
    REQUIRE(run_one(PERSEUS_ALLREDUCE, "x") == PERSEUS_OK);
  });
}

TEST_P(NameConflicts, TwoProcessSets) {
  if (GetParam() < 3) GTEST_SKIP() << "two ranks have one set of two";
  World(GetParam(), kImpatient).run([&](int rank) {
    const std::vector<int32_t> pair = {0, 1};
    perseus_process_set_t set = -1;
    REQUIRE(perseus_add_process_set(pair.data(), 2, &set) == PERSEUS_OK);
    // Rank 0 takes the pair for the world.
    REQUIRE(run_one(PERSEUS_ALLREDUCE, "x", rank == 0 ? set : PERSEUS_WORLD) == PERSEUS_MISMATCH);
    REQUIRE(last_error_says("in process set " + std::to_string(set)));
    REQUIRE(last_error_says("in process set 0"));
    REQUIRE(run_one(PERSEUS_ALLREDUCE, "x") == PERSEUS_OK);
    if (rank < 2) REQUIRE(run_one(PERSEUS_ALLREDUCE, "x", set) == PERSEUS_OK);
  });
}

TEST_P(NameConflicts, AProcessSetAddedHereAndAnotherRemovedThere) {
  if (GetParam() < 3) GTEST_SKIP() << "two ranks have no set of some of them";
  World(GetParam(), kImpatient).run([&](int rank) {
    const int32_t first[] = {0, 1}, second[] = {1, 2};
    perseus_process_set_t set = -1, other = -1;
    REQUIRE(perseus_add_process_set(first, 2, &set) == PERSEUS_OK);
    REQUIRE((rank == 0 ? perseus_remove_process_set(set)
                       : perseus_add_process_set(second, 2, &other)) == PERSEUS_MISMATCH);
    REQUIRE(perseus_add_process_set(second, 2, &other) == PERSEUS_OK);
  });
}

TEST_P(NameConflicts, ASetThatTheRankIsNotIn) {
  if (GetParam() < 3) GTEST_SKIP() << "somebody must be outside";
  World(GetParam(), kImpatient).run([&](int rank) {
    const int32_t pair[] = {0, 1};
    perseus_process_set_t set = -1;
    REQUIRE(perseus_add_process_set(pair, 2, &set) == PERSEUS_OK);
    const std::string text = "rank 2 does not belong to process set " + std::to_string(set);
    REQUIRE(run_one(PERSEUS_ALLREDUCE, "x", rank == 2 ? set : PERSEUS_WORLD) ==
            (rank == 2 ? PERSEUS_INVALID_ARGUMENT : PERSEUS_MISMATCH));
    REQUIRE(last_error_says(text));
    REQUIRE(run_one(PERSEUS_ALLREDUCE, "y") == PERSEUS_OK);
    // A rank that corrects itself at once spares the others the error.
    if (rank == 2) REQUIRE(run_one(PERSEUS_ALLREDUCE, "z", set) == PERSEUS_INVALID_ARGUMENT);
    REQUIRE(run_one(PERSEUS_ALLREDUCE, "z") == PERSEUS_OK);
  });
}

TEST_P(NameConflicts, ARankThatIsSlowInAChainOfSetsIsNone) {
  if (GetParam() < 3) GTEST_SKIP() << "a chain needs three";
  World(GetParam(), kImpatient).run([&](int rank) {
    // Each waits for the next, in a set of their own under one name; the last only takes its time.
    std::vector<perseus_process_set_t> sets;
    for (int32_t first = 0; first + 1 < GetParam(); ++first) {
      const int32_t ranks[] = {first, first + 1};
      perseus_process_set_t set = -1;
      REQUIRE(perseus_add_process_set(ranks, 2, &set) == PERSEUS_OK);
      sets.push_back(set);
    }
    if (rank == GetParam() - 1) std::this_thread::sleep_for(std::chrono::milliseconds(3500));
    if (rank < GetParam() - 1) REQUIRE(run_one(PERSEUS_ALLREDUCE, "x", sets[rank]) == PERSEUS_OK);
    if (rank > 0) REQUIRE(run_one(PERSEUS_ALLREDUCE, "x", sets[rank - 1]) == PERSEUS_OK);
  });
}

TEST_P(NameConflicts, ARankThatComesLateIsNone) {
  World(GetParam(), kImpatient).run([&](int rank) {
    // Both operations of the name are under way on the others; one rank is late for both, and
    // takes them in the other order.
    std::vector<float> a(4, 1.0f), b(4, 1.0f);
    Submission reduce(PERSEUS_ALLREDUCE, "x");
    reduce.tensor(a.data(), a.data(), kShape, PERSEUS_FLOAT32);
    Submission broadcast(PERSEUS_BROADCAST, "x");
    broadcast.tensor(b.data(), b.data(), kShape, PERSEUS_FLOAT32);
    perseus_handle_t handles[2];
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2500));
      handles[1] = broadcast.submit();
      handles[0] = reduce.submit();
    } else {
      handles[0] = reduce.submit();
      handles[1] = broadcast.submit();
    }
    for (perseus_handle_t handle : handles) {
      REQUIRE(perseus_wait(handle, -1) == PERSEUS_OK);
      perseus_release(handle);
    }
    REQUIRE(a[0] == static_cast<float>(GetParam()));
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, NameConflicts, testing::Values(2, 3, 4));

}  // namespace
}  // namespace perseus::test
