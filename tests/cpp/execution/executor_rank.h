// A rank's executor, with the process set of all ranks, for tests that run batches as an agreement
// leaves them.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/settings.h"
#include "execution/executor.h"
#include "transport/thread_world.h"

namespace perseus {

// Remembers what the executor tells its owner.
struct ExecutorRank final : OperationObserver, ShardFailureHandler, GpuLaunchesHost {
  // `key`: for the tags of row counts; null: they have none.
  ExecutorRank(RankContext& context, const Settings& given, const WorldKey* key = nullptr)
      : rank(context), settings(given), world_key(key) {
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

  // The values must outlive the operation.
  static OperationPtr operation(OperationKind kind, const std::string& name,
                                const std::vector<float>& values, const Shape& shape) {
    auto operation = std::make_shared<Operation>();
    operation->key = operation_key(kind, name);
    operation->description.kind = kind;
    operation->description.tensors = {{DataType::kFloat32, shape}};
    operation->tensors.resize(1);
    operation->tensors[0].input = reinterpret_cast<const std::byte*>(values.data());
    return operation;
  }
  static OperationPtr allreduce(const std::string& name, const std::vector<float>& values,
                                double prescale = 1.0) {
    OperationPtr made =
        operation(OperationKind::kAllreduce, name, values, {static_cast<int64_t>(values.size())});
    made->description.prescale = prescale;
    return made;
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
  Task run(const std::vector<OperationPtr>& operations) {
    executor.run(batch_of(operations), {});
    return until_idle();
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
  const WorldKey* const world_key;
  BufferPool buffers;
  Timeline timeline;
  Residuals residuals;
  Counters counters;
  GpuThreads gpus{rank.loop, std::chrono::seconds(1)};
  ProcessSetPtr set = std::make_shared<ProcessSet>();
  Executor executor{
      RunContext{settings, buffers, timeline, residuals, counters, rank.rank, gpus, world_key},
      {.operations = *this, .shards = *this, .launches = *this},
      rank.size,
      WorldShape{.hosts = 1, .ranks = rank.size}};
  std::map<std::string, uint32_t> ids;
  uint64_t rounds = 0;
  std::vector<std::string> done;
  int wakes = 0, shards_ended = 0;
};

inline float result(const Operation& operation, size_t element) {
  return reinterpret_cast<const float*>(operation.tensors[0].output)[element];
}

}  // namespace perseus
