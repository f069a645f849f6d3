// The types that all runs of agreed operations share: a batch, its shards, and the parts of the
// engine that they use. Engine thread.
#pragma once

#include <algorithm>
#include <coroutine>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/buffer_pool.h"
#include "base/task.h"
#include "codec/residuals.h"
#include "device/cuda/gpu_thread.h"
#include "observe/counters.h"
#include "observe/timeline.h"
#include "schedule/admission.h"
#include "schedule/launch_order.h"
#include "schedule/plan.h"
#include "state/process_set.h"

namespace perseus {

struct Settings;
class WorldKey;

// Operations that were agreed on together, and their plan. Kept alive by its shards.
struct Batch {
  ProcessSetPtr set;
  uint64_t round = 0;                    // of the set's agreements
  std::vector<Agreement::Ready> agreed;  // in the order in which they are to run
  // By index in `agreed`. Null if this rank has joined and only helps the others.
  std::vector<OperationPtr> operations;
  bool is_joined = false;  // some rank has joined, and takes part without having submitted
  Plan plan;
  // The sizes of all ranks' inputs, if they have come with the agreement: see Agreement::sizes.
  std::vector<int64_t> sizes;
  int64_t step = 0;  // the training step, where steps are counted

  void take_sizes(std::span<const std::byte> bytes) {
    sizes.resize(bytes.size() / sizeof(int64_t));
    std::ranges::copy(bytes, std::as_writable_bytes(std::span(sizes)).begin());
  }

  void recycle() {
    set.reset();
    step = 0;
    sizes.clear();
    agreed.clear();
    operations.clear();
  }
};

// The parts of the engine that a run uses.
struct RunContext {
  const Settings& settings;
  BufferPool& buffers;
  Timeline& timeline;
  Residuals& residuals;
  Counters& counters;
  int rank;
  GpuThreads& gpus;
  // For the tags of row counts. Null on all ranks if nobody else can write to what they share.
  const WorldKey* world_key = nullptr;
};

struct ShardRun;

// The turn of a shard that is launched on GPUs; see GpuLaunches.
struct GpuTurn : Launch {
  ShardRun* run = nullptr;  // null: the shard is not launched in turn
  bool is_settled = false;
  bool has_come = false;           // its last turn has come or was cancelled; no list holds it
  bool is_over = false;            // the shard has ended
  std::coroutine_handle<> waiter;  // the shard's Task while it waits for its turn
  Status cancelled;
};

// Hears when a shard has ended.
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
  bool streaming = false;  // more is under way than the caches hold
  // These tag the shard's messages, and are the same on every rank. The shards of a batch share a
  // series, except that each operation that is not sharded has its own.
  uint64_t series = 0;  // counted within the process set
  uint32_t index = 0;   // within the batch
  Shard shard;
  std::string residual_name;  // a member so that its memory is reused
  GpuTurn turn;

  const Agreement::Ready& agreed() const { return batch->agreed[shard.operation]; }
  const Description& description() const { return agreed().description(); }
  // Returns whether the operation's tensors are on GPUs. A rank that has joined has none itself.
  bool is_of_gpus() const { return description().device == DeviceKind::kCuda; }
};

}  // namespace perseus
