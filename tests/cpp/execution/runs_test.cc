// One operation of each kind, run by real executors over real links between threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "base/world_key.h"
#include "execution/executor_rank.h"

namespace perseus {
namespace {

// Returns whether the operation has ended well with these values, and this shape.
testing::AssertionResult has(const Operation& operation, const std::vector<float>& expected,
                             const Shape& shape) {
  if (!operation.status.is_ok()) return testing::AssertionFailure() << operation.status.message();
  if (operation.tensors[0].result_shape != shape) {
    return testing::AssertionFailure() << "another shape than expected";
  }
  for (size_t i = 0; i < expected.size(); ++i) {
    if (result(operation, i) == expected[i]) continue;
    return testing::AssertionFailure()
           << "element " << i << " is " << result(operation, i) << ", not " << expected[i];
  }
  return testing::AssertionSuccess();
}

class RunsTest : public testing::TestWithParam<int> {
 protected:
  using Variables = std::vector<std::pair<std::string, std::string>>;
  // Runs `body` on each rank, whose executor has these settings.
  void run(const std::function<Task(RankContext&, ExecutorRank&)>& body,
           const Variables& variables = {}) {
    const Settings settings = test_settings(variables);
    const auto on_rank = [&](RankContext& rank) -> Task {
      ExecutorRank mine(rank, settings);
      Task task = body(rank, mine);
      co_return co_await std::move(task);
    };
    for (const Status& status : run_world_of_threads(GetParam(), settings, on_rank)) {
      EXPECT_TRUE(status.is_ok()) << status.message();
    }
  }
};

TEST_P(RunsTest, ABroadcastHasTheValuesOfItsRoot) {
  run([](RankContext& rank, ExecutorRank& mine) -> Task {
    const int root = rank.size - 1;
    const std::vector<float> values(5, static_cast<float>(rank.rank));
    const auto operation = mine.operation(OperationKind::kBroadcast, "b", values, {5});
    operation->description.root = root;
    Task task = mine.run({operation});
    const Status status = co_await std::move(task);
    EXPECT_TRUE(has(*operation, std::vector<float>(5, static_cast<float>(root)), {5}));
    co_return status;
  });
}

TEST_P(RunsTest, AnAllgatherHasTheRowsOfAllRanksThoughTheirNumbersDiffer) {
  run([](RankContext& rank, ExecutorRank& mine) -> Task {
    const int64_t rows = rank.rank + 1;
    const std::vector<float> values(2 * rows, static_cast<float>(rank.rank));
    const auto operation = mine.operation(OperationKind::kAllgather, "g", values, {rows, 2});
    std::vector<float> expected;
    for (int r = 0; r < rank.size; ++r) expected.insert(expected.end(), 2 * (r + 1), r);
    Task task = mine.run({operation});
    const Status status = co_await std::move(task);
    EXPECT_TRUE(has(*operation, expected, {static_cast<int64_t>(expected.size()) / 2, 2}));
    co_return status;
  });
}

// Moves a row of each rank to every other. This rank's executor has this key of its world.
Task move_rows(OperationKind kind, RankContext& rank, const WorldKey& key, Status& ended,
               std::vector<int64_t> sizes = {}) {  // by value: a coroutine outlives the argument
  ExecutorRank mine(rank, test_settings({}), &key);
  const std::vector<float> values(rank.size, 1.0f);
  const auto operation = mine.operation(kind, "x", values, {rank.size});
  operation->splits.assign(rank.size, 1);
  const auto batch = mine.batch_of({operation});
  batch->take_sizes(std::as_bytes(std::span(sizes)));
  mine.executor.run(batch, {});
  Task task = mine.until_idle();
  const Status status = co_await std::move(task);
  ended = operation->status;
  co_return status;
}

TEST_P(RunsTest, NumbersOfRowsAreProvenByTheKeyOfTheWorld) {
  run([](RankContext& rank, ExecutorRank&) -> Task {
    for (const OperationKind kind : {OperationKind::kAllgather, OperationKind::kAlltoall}) {
      Status ended;
      Task task = move_rows(kind, rank, rank.mesh.world_key(), ended);
      const Status status = co_await std::move(task);
      EXPECT_TRUE(ended.is_ok()) << ended.message();
      PERSEUS_CO_RETURN_IF_ERROR(status);
    }
    co_return Status::ok();
  });
}

TEST_P(RunsTest, NumbersOfRowsOfAnotherWorldAreRefused) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank has one key";
  for (const OperationKind kind : {OperationKind::kAllgather, OperationKind::kAlltoall}) {
    run([kind](RankContext& rank, ExecutorRank&) -> Task {
      const std::vector<std::string> others = {std::to_string(rank.rank)};
      const WorldKey key("secret", others);
      Status ended;
      Task task = move_rows(kind, rank, key, ended);
      const Status status = co_await std::move(task);
      EXPECT_EQ(ended.code(), StatusCode::kAborted);
      const std::string other = "rank " + std::to_string(rank.rank == 0 ? 1 : 0);
      EXPECT_NE(ended.message().find(" 'x': the number of rows that has come from " + other +
                                     " was changed on the way"),
                std::string::npos)
          << ended.message();
      co_return status;
    });
  }
}

// With keys that do not fit, since a number of rows that is sent would be refused.
TEST_P(RunsTest, NumbersOfRowsThatCameWithTheAgreementAreNotSentAgain) {
  for (const OperationKind kind : {OperationKind::kAllgather, OperationKind::kAlltoall}) {
    run([kind](RankContext& rank, ExecutorRank&) -> Task {
      const std::vector<std::string> others = {std::to_string(rank.rank)};
      const WorldKey key("secret", others);
      const bool is_gathered = kind == OperationKind::kAllgather;
      const std::vector<int64_t> sizes(is_gathered ? rank.size : rank.size * rank.size,
                                       is_gathered ? rank.size : 1);
      Status ended;
      Task task = move_rows(kind, rank, key, ended, sizes);
      const Status status = co_await std::move(task);
      EXPECT_TRUE(ended.is_ok()) << ended.message();
      co_return status;
    });
  }
}

TEST_P(RunsTest, AnAlltoallSendsEachRankItsRows) {
  run([](RankContext& rank, ExecutorRank& mine) -> Task {
    std::vector<float> values, expected;
    std::vector<int64_t> splits, received;
    for (int r = 0; r < rank.size; ++r) {  // rank i sends j rows to rank j
      splits.push_back(r);
      values.insert(values.end(), r, 10.0f * rank.rank + r);
      received.push_back(rank.rank);
      expected.insert(expected.end(), rank.rank, 10.0f * r + rank.rank);
    }
    const auto operation = mine.operation(OperationKind::kAlltoall, "a", values,
                                          {static_cast<int64_t>(values.size())});
    operation->splits = splits;
    Task task = mine.run({operation});
    const Status status = co_await std::move(task);
    EXPECT_TRUE(has(*operation, expected, {static_cast<int64_t>(expected.size())}));
    EXPECT_EQ(operation->received_splits, received);
    co_return status;
  });
}

TEST_P(RunsTest, AReduceScatterGivesTheFirstRanksOneRowMore) {
  run([](RankContext& rank, ExecutorRank& mine) -> Task {
    const int64_t rows = 2 * rank.size + 1;
    std::vector<float> values, means;
    for (int64_t row = 0; row < rows; ++row) {
      values.push_back(static_cast<float>(row + 2 * rank.rank));
      means.push_back(static_cast<float>(row + rank.size - 1));
    }
    const auto operation = mine.operation(OperationKind::kReduceScatter, "s", values, {rows});
    operation->description.reduce_op = ReduceOp::kAverage;
    Task task = mine.run({operation});
    const Status status = co_await std::move(task);
    const bool is_first = rank.rank == 0;
    const auto begin = means.begin() + (is_first ? 0 : 2 * rank.rank + 1);
    const int64_t own_rows = is_first ? 3 : 2;
    EXPECT_TRUE(has(*operation, std::vector<float>(begin, begin + own_rows), {own_rows}));
    co_return status;
  });
}

TEST_P(RunsTest, AdasumOfEqualVectorsIsThatVector) {
  run([](RankContext&, ExecutorRank& mine) -> Task {
    const std::vector<float> values = {3, -4, 0.5};
    const auto operation = mine.allreduce("a", values);
    operation->description.reduce_op = ReduceOp::kAdasum;
    Task task = mine.run({operation});
    const Status status = co_await std::move(task);
    EXPECT_TRUE(has(*operation, values, {3}));
    co_return status;
  });
}

TEST_P(RunsTest, ACodecRoundsWhatIsSent) {
  run(
      [](RankContext& rank, ExecutorRank& mine) -> Task {
        const std::vector<float> values(70000, 1 + 0x1p-20f);  // 1 in fp16
        const auto operation = mine.allreduce("c", values);
        Task task = mine.run({operation});
        const Status status = co_await std::move(task);
        EXPECT_TRUE(operation->status.is_ok()) << operation->status.message();
        if (!operation->status.is_ok()) co_return status;
        const float expected = rank.size == 1 ? result(*operation, 0) : rank.size;
        EXPECT_NEAR(expected, rank.size, 1e-3);
        EXPECT_TRUE(has(*operation, std::vector<float>(70000, expected), {70000}));
        co_return status;
      },
      {{"PERSEUS_ALLREDUCE_DTYPE", "fp16"}});
}

TEST_P(RunsTest, NanIsReportedOnAllRanksWithTheRankAndTheElementThatHadIt) {
  run(
      [](RankContext& rank, ExecutorRank& mine) -> Task {
        std::vector<float> values(8, 1);
        if (rank.rank == rank.size - 1) values[5] = NAN;
        const auto operation = mine.allreduce("n", values);
        Task task = mine.run({operation});
        const Status status = co_await std::move(task);
        EXPECT_EQ(operation->status.code(), StatusCode::kNonFinite);
        const std::string& message = operation->status.message();
        const std::string culprit = "rank " + std::to_string(rank.size - 1);
        EXPECT_NE(message.find("'n'"), std::string::npos) << message;
        EXPECT_NE(message.find(culprit), std::string::npos) << message;
        EXPECT_NE(message.find("element 5"), std::string::npos) << message;
        co_return status;
      },
      {{"PERSEUS_ALLREDUCE_NANCHECK", "raise"}});
}

TEST_P(RunsTest, ZerosAreSummedInPlaceOfNanWhereThatIsAskedFor) {
  run(
      [](RankContext& rank, ExecutorRank& mine) -> Task {
        std::vector<float> values(8, 1);
        if (rank.rank == 0) values[5] = NAN;
        const auto operation = mine.allreduce("z", values);
        Task task = mine.run({operation});
        const Status status = co_await std::move(task);
        std::vector<float> expected(8, static_cast<float>(rank.size));
        expected[5] = static_cast<float>(rank.size - 1);
        EXPECT_TRUE(has(*operation, expected, {8}));
        co_return status;
      },
      {{"PERSEUS_ALLREDUCE_NANCHECK", "zero"}});
}

TEST_P(RunsTest, ARankThatHasJoinedHelpsAndAddsNothing) {
  run([](RankContext& rank, ExecutorRank& mine) -> Task {
    const int joined = rank.size - 1;
    const std::vector<float> values(1000, 2);
    const auto sum = mine.allreduce("j", values);
    const auto gather = mine.operation(OperationKind::kAllgather, "g", values, {1000});
    const auto batch = mine.batch_of({sum, gather});
    batch->is_joined = true;
    const bool has_joined = rank.size > 1 && rank.rank == joined;
    if (has_joined) batch->operations = {nullptr, nullptr};
    mine.executor.run(batch, {});
    Task idle = mine.until_idle();
    const Status status = co_await std::move(idle);
    if (has_joined) {
      EXPECT_TRUE(mine.done.empty());
      co_return status;
    }
    const int64_t others = std::max(1, rank.size - 1);
    EXPECT_TRUE(has(*sum, std::vector<float>(1000, static_cast<float>(2 * others)), {1000}));
    EXPECT_TRUE(has(*gather, std::vector<float>(1000 * others, 2), {1000 * others}));
    co_return status;
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, RunsTest, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace perseus
