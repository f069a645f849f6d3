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
  std::vector<Agreement::Ready> agreed;  // in the order in which they are to run
  // By index in `agreed`; null where this rank has joined and only helps the others.
  std::vector<OperationPtr> operations;
  Plan plan;

  void recycle() {
    set.reset();
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

// Memory for results that the caller left to the library, of the sizes known before the operation
// runs. kOutOfMemory if there is none.
Status allocate_outputs(Operation& operation, int set_size, int set_index);

// Rows of a first dimension of `rows` that fall to `index` of `size`: as even as can be, the first
// ones take one more (Horovod's rule for reduce-scatter).
int64_t rows_of(int64_t rows, int size, int index);

}  // namespace perseus
