// Runs what was agreed: plans it, admits shards as streams and credit allow, and completes an
// operation when its last shard is done. Engine thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/recycler.h"
#include "execution/gpu/gpu_launches.h"
#include "execution/shard_run.h"
#include "schedule/admission.h"
#include "schedule/tuner.h"
#include "schedule/tuning_log.h"

namespace perseus {

// Told of operations that are done.
class OperationObserver {
 public:
  virtual void operation_done(const OperationPtr& operation, const Status& status) = 0;
  // Called after some operations were done together.
  virtual void wake_waiters() = 0;

 protected:
  ~OperationObserver() = default;
};

// Told of shards that fail or end.
class ShardFailureHandler {
 public:
  // A shard could not be moved, or not even begun. Returns what its operations are told.
  virtual Status shard_failed(const Status& status) = 0;
  // A shard no longer runs.
  virtual void shard_ended() = 0;

 protected:
  ~ShardFailureHandler() = default;
};

// What the executor tells of its work, and to whom.
struct ExecutorHosts {
  OperationObserver& operations;
  ShardFailureHandler& shards;
  GpuLaunchesHost& launches;
};

class Executor final : ShardObserver {
 public:
  // `local_size`: ranks on this host; `host_count`: hosts of the job.
  Executor(RunContext context, ExecutorHosts hosts, int local_size, int host_count);

  // An empty batch, to be filled and run.
  std::shared_ptr<Batch> new_batch() { return batches_.take(); }
  // inputs: see Agreement.
  void run(const std::shared_ptr<Batch>& batch, std::span<const std::byte> inputs);
  // This rank's input of an operation that needs no shard once all ranks' inputs are at hand; empty
  // of another.
  std::span<const std::byte> input_for_agreement(const Operation& operation) const;
  // Before an operation is agreed on: why it cannot be run here with the others of its set.
  Status check_gpu(ProcessSet& set, const Operation& operation) const;
  // Around what is done after each agreement of a set: then, what it launches on GPUs next.
  void hold_launches() { launches_.hold(); }
  void settle_launches(ProcessSet& set, const Agreement& agreement);
  // Ends what has not started with `why`: of all sets, but on GPUs of one. What is under way ends
  // as its links do.
  void cancel_waiting(const Status& why);
  void cancel_launches(ProcessSet& set, const Status& why) { launches_.cancel(set, why); }
  bool is_idle() const { return admission_.is_idle() && launches_.is_idle(); }
  // An operation in this set that is not done, or null.
  const Operation* find_running(int32_t process_set) const;
  // Whether something is not done that this set agreed on after `round`.
  bool is_running_after(int32_t process_set, uint64_t round) const;

  // The tuner's part in an agreement: what was measured here, and the outcome of all ranks.
  const Tuner& tuner() const { return tuner_; }
  void conclude_trial(uint64_t slowest);

 private:
  void shard_finished(ShardRun& run, const Status& status) override;
  ShardRun* new_run();
  Granularity granularity(const Batch& batch) const;
  // Whether the shard is launched on GPUs in turn with others; the same on all ranks.
  bool takes_turns(const ShardRun& run) const;
  // Makes what the set needs for that.
  Status prepare_gpus(ProcessSet& set, const ShardRun& run);
  // The whole work of a batch whose inputs have come with the agreement.
  void run_gathered(const Batch& batch, std::span<const std::byte> inputs);
  void launch_in_turn(Batch& batch);
  // Ends a batch that cannot run here; the other ranks wait for it in vain.
  void fail_batch(const Batch& batch, const Status& status);
  void pump();
  void launch_finished(ShardRun& run, const Status& status);
  void settle(ShardRun& run, const Status& status);
  // How an operation whose shards are done has ended.
  Status outcome(const Operation& operation);
  void count(const ShardRun& run);

  // Shards that may be under way at once.
  int most_at_once() const;
  // Finds where a training step ends, for the tuner and for who wants to name it.
  void note_step(Batch& batch);
  void note_idle();

  RunContext context_;
  const bool several_hosts_;
  const uint64_t cached_bytes_;  // of tensors that are still in this rank's caches when it is done
  const ExecutorHosts hosts_;
  Tuner tuner_;
  Admission admission_;
  GpuLaunches launches_;
  std::vector<ShardRun*> in_turn_;  // of a batch
  bool is_busy_ = false;
  Clock::time_point busy_since_;
  uint64_t busy_bytes_ = 0;
  bool pumping_ = false;
  TuningLog tuning_log_;
  std::vector<uint64_t> fingerprints_;  // of a batch, for the counter of steps
  int bursts_ = 0;                      // of work, in this step
  bool step_ends_when_idle_ = false;
  int non_finite_lines_ = 0;  // in the log
  Planner planner_;
  Recycler<Batch> batches_;
  std::vector<std::unique_ptr<ShardRun>> runs_;  // all there are
  std::vector<ShardRun*> free_runs_;
};

}  // namespace perseus
