// Batches as an agreement leaves them, run by real executors over real links between threads.
#include "execution/executor.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "execution/executor_rank.h"

namespace perseus {
namespace {

class ExecutorTest : public testing::TestWithParam<int> {
 protected:
  void run(const RankBody& body) {
    for (const Status& status : run_world_of_threads(GetParam(), test_settings(), body)) {
      EXPECT_TRUE(status.is_ok()) << status.message();
    }
  }
};

TEST_P(ExecutorTest, SumsEachTensorOfABatchWithItsFactor) {
  run([](RankContext& rank) -> Task {
    ExecutorRank mine(rank, test_settings());
    std::vector<std::vector<float>> values;
    std::vector<OperationPtr> operations;
    for (int t = 0; t < 5; ++t) {
      values.emplace_back(1000 + t, static_cast<float>(rank.rank + t));
    }
    for (int t = 0; t < 5; ++t) {
      operations.push_back(mine.allreduce("tensor" + std::to_string(t), values[t], 0.5));
    }
    Task task = mine.run(operations);
    Status status = co_await std::move(task);
    EXPECT_EQ(mine.done.size(), 5u);
    for (int t = 0; t < 5; ++t) {
      EXPECT_TRUE(operations[t]->status.is_ok());
      double sum = 0;
      for (int r = 0; r < rank.size; ++r) sum += 0.5 * (r + t);
      EXPECT_EQ(result(*operations[t], 0), sum);
      EXPECT_EQ(result(*operations[t], values[t].size() - 1), sum);
    }
    EXPECT_EQ(mine.shards_ended, 1) << "small tensors go as one shard";
    co_return status;
  });
}

TEST_P(ExecutorTest, CutsALargeTensorToShardsOfWhichTheLastCompletesIt) {
  run([](RankContext& rank) -> Task {
    ExecutorRank mine(rank, test_settings());
    std::vector<float> values(8 << 20, static_cast<float>(rank.rank));
    const OperationPtr operation = mine.allreduce("large", values);
    mine.executor.run(mine.batch_of({operation}), {});
    if (rank.size > 1) {
      EXPECT_EQ(mine.executor.find_running(ProcessSet::kWorld), operation.get());
      EXPECT_TRUE(mine.executor.is_running_after(ProcessSet::kWorld, 0));
      EXPECT_FALSE(mine.executor.is_running_after(ProcessSet::kWorld, mine.rounds));
      EXPECT_TRUE(mine.done.empty());
    }
    Task idle = mine.until_idle();
    Status status = co_await std::move(idle);
    EXPECT_EQ(mine.done.size(), 1u);
    EXPECT_GT(mine.shards_ended, 1);
    const double sum = rank.size * (rank.size - 1) / 2.0;
    EXPECT_EQ(result(*operation, 0), sum);
    EXPECT_EQ(result(*operation, values.size() - 1), sum);
    EXPECT_EQ(mine.executor.find_running(ProcessSet::kWorld), nullptr);
    co_return status;
  });
}

TEST_P(ExecutorTest, AnEmptyTensorIsDoneAtOnce) {
  run([](RankContext& rank) -> Task {
    ExecutorRank mine(rank, test_settings());
    std::vector<float> none;
    mine.executor.run(mine.batch_of({mine.allreduce("empty", none)}), {});
    EXPECT_EQ(mine.done.size(), 1u);
    EXPECT_TRUE(mine.executor.is_idle());
    co_return Status::ok();
  });
}

TEST_P(ExecutorTest, InputsThatCameWithTheAgreementNeedNoMessage) {
  run([](RankContext& rank) -> Task {
    ExecutorRank mine(rank, test_settings());
    std::vector<float> values(3, static_cast<float>(rank.rank + 1));
    const OperationPtr operation = mine.allreduce("small", values);
    const auto input = mine.executor.attachment(*operation, rank.size).bytes;
    EXPECT_EQ(input.size(), 3 * sizeof(float));
    std::vector<float> all;
    double sum = 0;
    for (int r = 0; r < rank.size; ++r) {
      all.insert(all.end(), 3, static_cast<float>(r + 1));
      sum += r + 1;
    }
    mine.executor.run(mine.batch_of({operation}), std::as_bytes(std::span(all)));
    EXPECT_EQ(mine.done.size(), 1u);
    EXPECT_TRUE(operation->status.is_ok());
    EXPECT_EQ(result(*operation, 2), sum);
    EXPECT_EQ(mine.shards_ended, 0);
    co_return Status::ok();
  });
}

TEST_P(ExecutorTest, WhatHasNotStartedCanBeCancelled) {
  run([](RankContext& rank) -> Task {
    ExecutorRank mine(rank, test_settings());
    std::vector<float> values(8 << 20, 1.0f);
    const OperationPtr operation = mine.allreduce("large", values);
    mine.executor.run(mine.batch_of({operation}), {});
    if (rank.size == 1) co_return Status::ok();  // done by now
    mine.executor.cancel_waiting(Status::aborted("the end"));
    rank.mesh.fail_all(Status::aborted("the end"));
    Task idle = mine.until_idle();
    Status status = co_await std::move(idle);
    EXPECT_EQ(mine.done.size(), 1u);
    EXPECT_EQ(operation->status.code(), StatusCode::kAborted);
    co_return status;
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, ExecutorTest, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace perseus
