// A shard on its way: from the tensors to the wire and back. One Task for each kind of operation;
// they run on the engine's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/buffer_pool.h"
#include "base/settings.h"
#include "base/task.h"
#include "codec/residuals.h"
#include "engine/process_set.h"
#include "observe/counters.h"
#include "observe/timeline.h"
#include "schedule/admission.h"
#include "schedule/plan.h"

namespace perseus {

class Executor;

// Operations that were agreed on together, and the work that they make. Kept alive by its shards.
struct Batch {
  ProcessSetPtr set;
  uint64_t round = 0;                    // of the set's agreements
  std::vector<Agreement::Ready> agreed;  // in the order in which they are to run
  // By index in `agreed`; null where this rank has joined and only helps the others.
  std::vector<OperationPtr> operations;
  Plan plan;
  int64_t step = 0;  // of training, where it is counted

  void recycle() {
    set.reset();
    step = 0;
    agreed.clear();
    operations.clear();
  }
};

// What a run needs of the engine.
struct RunContext {
  const Settings& settings;
  BufferPool& buffers;
  Timeline& timeline;
  Residuals& residuals;
  Counters& counters;
  int rank;
};

struct ShardRun final : Ticket, TaskObserver {
  explicit ShardRun(Executor& owner) : executor(owner) {}
  void task_finished(const Status& status) override;

  Executor& executor;
  std::shared_ptr<Batch> batch;
  bool streaming = false;  // with all that is under way, more than the caches hold
  // Name its messages: the same on every rank.
  uint64_t series = 0;  // counts within the process set; the shards of a batch share one
  uint32_t index = 0;   // within the series
  Shard shard;
  std::string residual_name;  // see run_coded; keeps its memory

  const Agreement::Ready& agreed() const { return batch->agreed[shard.operation]; }
  const Description& description() const { return agreed().description(); }
};

// Runs the shard to its end.
Task run_shard(ShardRun& run, RunContext context);

// ---- What the kinds of operations have in common.

// Of one that is done whole: allgather, alltoall, reduce-scatter.
Task run_whole(ShardRun& run, RunContext context);

// Messages of a shard are told apart by their number.
Call call_for(const ShardRun& run, RunContext& context, uint32_t number);

// kAverage is a sum whose results are divided by the size of the set.
double result_factor(const Description& description, int set_size);
ReduceOp wire_op(const Description& description);

}  // namespace perseus
