// Runs agreed operations: plans them, starts shards as streams and credit allow, and completes an
// operation when its last shard is done. Engine thread.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/recycler.h"
#include "execution/batch.h"
#include "execution/gpu/gpu_launches.h"
#include "negotiation/piggyback.h"
#include "schedule/admission.h"
#include "schedule/tuner.h"
#include "schedule/tuning_log.h"

namespace perseus {

// Learns of operations that are done.
class OperationObserver {
 public:
  virtual void operation_done(const OperationPtr& operation, const Status& status) = 0;
  // Called once after one or more operations were done together.
  virtual void wake_waiters() = 0;

 protected:
  ~OperationObserver() = default;
};

// Learns of shards that fail or end.
class ShardFailureHandler {
 public:
  // A shard has failed or could not begin. Returns the status that its operations end with.
  virtual Status shard_failed(const Status& status) = 0;
  // A shard has ended, well or not.
  virtual void shard_ended() = 0;

 protected:
  ~ShardFailureHandler() = default;
};

// The executor's observers.
struct ExecutorHosts {
  OperationObserver& operations;
  ShardFailureHandler& shards;
  GpuLaunchesHost& launches;
};

class Executor final : ShardObserver {
 public:
  // `local_size`: the number of ranks on this host. `shape`: of the world.
  Executor(RunContext context, ExecutorHosts hosts, int local_size, WorldShape shape);

  // Goes on from what was found in an earlier world. Returns whether it uses values from there.
  // Call before anything is run, with the same findings on all ranks.
  bool take_over(const TunerFindings& findings);

  // Returns an empty batch, to be filled and run.
  std::shared_ptr<Batch> new_batch() { return batches_.take(); }
  // inputs: see Agreement.
  void run(const std::shared_ptr<Batch>& batch, std::span<const std::byte> inputs);
  // Returns what this rank's ballot should take along for an operation of a set of this size: its
  // input, if no shard is needed once all ranks' inputs have come with the agreement; or the sizes
  // of the input, if ranks would have to swap those first. Returns an empty attachment for any
  // other operation.
  Attachment attachment(const Operation& operation, int size);
  // Call before an operation is agreed on. Returns an error if it uses a GPU that it cannot use
  // together with the set's other operations.
  Status check_gpu(ProcessSet& set, const Operation& operation) const;
  // Call hold_launches before running what a set has agreed on, and settle_launches afterwards,
  // which settles the set's next launches on GPUs.
  void hold_launches() { launches_.hold(); }
  void settle_launches(ProcessSet& set, const Agreement& agreement);
  // Both end, with `why`, what has not started: cancel_waiting ends the shards of all sets, and
  // cancel_launches ends one set's launches on GPUs. Shards that are under way end when their links
  // fail.
  void cancel_waiting(const Status& why);
  void cancel_launches(ProcessSet& set, const Status& why) { launches_.cancel(set, why); }
  bool is_idle() const { return admission_.is_idle() && launches_.is_idle(); }
  // Returns an operation of this set that is not done, or null.
  const Operation* find_running(int32_t process_set) const;
  // Returns whether something that this set agreed on after `round` is not done.
  bool is_running_after(int32_t process_set, uint64_t round) const;

  // The tuner's result on this rank goes with the ballots. conclude_trial takes the slowest rank's
  // result of a trial.
  const Tuner& tuner() const { return tuner_; }
  void conclude_trial(uint64_t slowest);

 private:
  void shard_finished(ShardRun& run, const Status& status) override;
  ShardRun* new_run();
  Granularity granularity(const Batch& batch) const;
  // Returns whether the shard is launched on GPUs, in turn with others. All ranks get the same
  // answer.
  bool takes_turns(const ShardRun& run) const;
  // Creates what the set needs for launches on GPUs.
  Status prepare_gpus(ProcessSet& set, const ShardRun& run);
  // Runs a batch of one operation whose inputs have come with the agreement.
  void run_gathered(const Batch& batch, std::span<const std::byte> inputs);
  void launch_in_turn(Batch& batch);
  // Ends a batch that cannot run here. The failure breaks the job, since other ranks wait for it.
  void fail_batch(const Batch& batch, const Status& status);
  void pump();
  void launch_finished(ShardRun& run, const Status& status);
  void settle(ShardRun& run, const Status& status);
  // Returns how an operation whose shards are done has ended.
  Status outcome(const Operation& operation);
  void count(const ShardRun& run);

  // Returns how many shards may be under way at once.
  int most_at_once() const;
  // Finds where a training step ends, for the tuner and for messages that name the step.
  void note_step(Batch& batch);
  void note_idle();

  RunContext context_;
  const bool several_hosts_;
  const uint64_t cached_bytes_;  // see cached_bytes()
  const ExecutorHosts hosts_;
  Tuner tuner_;
  Admission admission_;
  GpuLaunches launches_;
  std::vector<std::byte> attachment_;  // unless it is in the operation's memory
  std::vector<ShardRun*> in_turn_;     // shards of the batch being run that take turns
  bool is_busy_ = false;
  Clock::time_point busy_since_;
  uint64_t busy_bytes_ = 0;
  bool pumping_ = false;
  TuningLog tuning_log_;
  std::vector<uint64_t> fingerprints_;  // of a batch's operations, for the counter of steps
  int bursts_ = 0;                      // of work between idle moments, in this step
  bool step_ends_when_idle_ = false;
  int non_finite_lines_ = 0;  // written to the log
  Planner planner_;
  Recycler<Batch> batches_;
  std::vector<std::unique_ptr<ShardRun>> runs_;  // all of them, in use or free
  std::vector<ShardRun*> free_runs_;
};

}  // namespace perseus
