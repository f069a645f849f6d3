// A shard on its way: from the tensors to the wire and back. One Task for each kind of operation;
// they run on the engine's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/buffer_pool.h"
#include "base/settings.h"
#include "base/task.h"
#include "codec/codec.h"
#include "codec/residuals.h"
#include "device/cpu/pack.h"
#include "device/cuda/gpu_thread.h"
#include "observe/counters.h"
#include "observe/timeline.h"
#include "schedule/admission.h"
#include "schedule/launch_order.h"
#include "schedule/plan.h"
#include "state/process_set.h"

namespace perseus {

// Operations that were agreed on together, and the work that they make. Kept alive by its shards.
struct Batch {
  ProcessSetPtr set;
  uint64_t round = 0;                    // of the set's agreements
  std::vector<Agreement::Ready> agreed;  // in the order in which they are to run
  // By index in `agreed`; null where this rank has joined and only helps the others.
  std::vector<OperationPtr> operations;
  bool is_joined = false;  // ranks take part that have not submitted
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
  GpuThreads& gpus;
};

// A shard that is launched on GPUs in its turn; see GpuLaunches.
struct ShardRun;
struct GpuTurn : Launch {
  ShardRun* run = nullptr;  // null: it is not launched in turn
  bool is_settled = false;
  bool has_come = false;           // or been cancelled: nobody holds it any more
  bool is_over = false;            // the shard has ended
  std::coroutine_handle<> waiter;  // the shard has come to where it needs its turn
  Status cancelled;
};

// Told when a shard has come to its end.
class ShardObserver {
 public:
  virtual void shard_finished(ShardRun& run, const Status& status) = 0;

 protected:
  ~ShardObserver() = default;
};

struct ShardRun final : Ticket, TaskObserver {
  explicit ShardRun(ShardObserver& owner) : observer(owner) {}
  void task_finished(const Status& status) override { observer.shard_finished(*this, status); }

  ShardObserver& observer;
  std::shared_ptr<Batch> batch;
  bool streaming = false;  // with all that is under way, more than the caches hold
  // Name its messages: the same on every rank.
  uint64_t series = 0;  // counts within the process set; the shards of a batch share one
  uint32_t index = 0;   // within the series
  Shard shard;
  std::string residual_name;  // see run_coded; keeps its memory
  GpuTurn turn;

  const Agreement::Ready& agreed() const { return batch->agreed[shard.operation]; }
  const Description& description() const { return agreed().description(); }
  // Whether this rank's tensors, or those of the ranks that it helps, are on GPUs.
  bool is_of_gpus() const { return description().device == DeviceKind::kCuda; }
};

// Memory of a piece: none of an operation that this rank has not submitted.
Segment segment_of(const ShardRun& run, const Piece& piece);

// Runs the shard to its end.
Task run_shard(ShardRun& run, RunContext context);

// ---- What the kinds of operations have in common.

// Of one that is done whole: allgather, alltoall, reduce-scatter.
Task run_unsharded(ShardRun& run, RunContext context);

// Of a series of messages of the set.
uint64_t operation_tag(const ProcessSet& set, uint64_t series);
// A shard that runs several collectives gives each a `number` of its own.
CollectiveOptions collective_options(const ShardRun& run, RunContext& context, uint32_t number);

// The codec of an allreduce's shard, or null: only float32 sums are coded.
const Codec* codec_for(const Description& description, DataType dtype, const Settings& settings);

// What the user has asked for; kAuto: nothing.
AllreduceAlgorithm wanted_algorithm(const Settings& settings);

// kAverage is a sum whose results are divided by the size of the set.
double result_factor(const Description& description, int set_size);
ReduceOp wire_op(const Description& description);

}  // namespace perseus
