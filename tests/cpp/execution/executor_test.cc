// Batches as an agreement leaves them, run by real executors over real links between threads.
#include "execution/executor.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transport/thread_world.h"

namespace perseus {
namespace {

// A rank's executor and the process set of all ranks. Remembers what the executor tells.
struct ExecutorRank final : OperationObserver, ShardFailureHandler, GpuLaunchesHost {
  ExecutorRank(RankContext& context, const Settings& given) : rank(context), settings(given) {
    set->ranks.resize(rank.size);
    std::vector<Link*> links;
    for (int r = 0; r < rank.size; ++r) {
      set->ranks[r] = r;
      links.push_back(r == rank.rank ? nullptr : &rank.mesh.link(r));
    }
    set->index = rank.rank;
    set->group = make_group(rank.rank, std::move(links), rank.mesh.topology().host_of);
  }

  void operation_done(const OperationPtr& operation, const Status& status) override {
    operation->status = status;
    operation->done.set();
    done.push_back(operation->key);
  }
  void wake_waiters() override { ++wakes; }
  Status shard_failed(const Status& status) override { return status; }
  void shard_ended() override { ++shards_ended; }
  const ProcessSet& world() const override { return *set; }
  bool may_be_preceded(int32_t, uint64_t) override { return false; }
  void launch_ended(ProcessSet&) override {}

  OperationPtr allreduce(const std::string& name, std::vector<float>& values,
                         double prescale = 1.0) {
    auto operation = std::make_shared<Operation>();
    operation->key = operation_key(OperationKind::kAllreduce, name);
    operation->description.tensors = {{DataType::kFloat32, {static_cast<int64_t>(values.size())}}};
    operation->description.prescale = prescale;
    operation->tensors.resize(1);
    operation->tensors[0].input = reinterpret_cast<const std::byte*>(values.data());
    return operation;
  }
  std::shared_ptr<Batch> batch_of(const std::vector<OperationPtr>& operations) {
    std::shared_ptr<Batch> batch = executor.new_batch();
    batch->set = set;
    batch->round = ++rounds;
    for (const OperationPtr& operation : operations) {
      const auto id = static_cast<uint32_t>(ids.size());
      const auto known = ids.try_emplace(operation->key, id).first->second;
      batch->agreed.push_back({known, 0,
                               std::make_shared<KnownOperation>(
                                   KnownOperation{operation->key, operation->description})});
      batch->operations.push_back(operation);
    }
    return batch;
  }
  Task until_idle() {
    while (!executor.is_idle()) {
      NextTurn next{rank.loop};
      co_await next;
    }
    co_return Status::ok();
  }

  RankContext& rank;
  const Settings settings;
  BufferPool buffers;
  Timeline timeline;
  Residuals residuals;
  Counters counters;
  GpuThreads gpus{rank.loop, std::chrono::seconds(1)};
  ProcessSetPtr set = std::make_shared<ProcessSet>();
  Executor executor{RunContext{settings, buffers, timeline, residuals, counters, rank.rank, gpus},
                    {.operations = *this, .shards = *this, .launches = *this},
                    rank.size,
                    1};
  std::map<std::string, uint32_t> ids;
  uint64_t rounds = 0;
  std::vector<std::string> done;
  int wakes = 0, shards_ended = 0;
};

float result(const Operation& operation, size_t element) {
  return reinterpret_cast<const float*>(operation.tensors[0].output)[element];
}

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
    mine.executor.run(mine.batch_of(operations), {});
    Task idle = mine.until_idle();
    Status status = co_await std::move(idle);
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
    const auto input = mine.executor.input_for_agreement(*operation);
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
