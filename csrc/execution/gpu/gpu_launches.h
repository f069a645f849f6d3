// Lets shards be launched on GPUs in one order on all ranks. Within a process set LaunchOrder
// settles it, at each agreement. Of several sets with ranks in common, that comes first whose
// agreement has the earlier time (Agreement::time; of equal ones, the set with the lower id). A
// rank that may yet hear of an earlier one, since a round is under way in another set, waits for
// the end of that round, and demands it.
//
//   add -> (settled) -> [prepared: it awaits its turn] -> its turn -> ended
//
// One that has halves (see LaunchOrder) awaits two turns.
//
// Engine thread.
#pragma once

#include <coroutine>
#include <cstdint>
#include <vector>

#include "execution/shard_run.h"

namespace perseus {

class GpuLaunchesHost {
 public:
  // The set of all ranks.
  virtual const ProcessSet& world() const = 0;
  // Returns whether another set may yet agree on launches before this time; it is then made to
  // agree.
  virtual bool may_be_preceded(int32_t set, uint64_t time) = 0;
  // What the set has launched has come a step further.
  virtual void launch_ended(ProcessSet& set) = 0;

 protected:
  ~GpuLaunchesHost() = default;
};

class GpuLaunches {
 public:
  GpuLaunches(uint64_t credit_bytes, int lanes, GpuLaunchesHost& host)
      : credit_bytes_(credit_bytes), lanes_(lanes), host_(host) {}

  // In the order of agreement.
  void add(ShardRun& run, bool has_halves);
  // A set has agreed on something: nothing is let go until it is settled what comes next, which may
  // be earlier than all that waits.
  void hold() { ++holds_; }
  // The end of that, when what was agreed on has been added.
  void settle(ProcessSet& set, const Agreement& agreement);

  // To be awaited by the shard's Task when it is prepared, and again for its lower half once the
  // upper one has been launched. An error if it has been cancelled.
  class Turn {
   public:
    Turn(GpuLaunches& launches, GpuTurn& turn) : launches_(launches), turn_(turn) {}
    bool await_ready() const { return !turn_.cancelled.is_ok(); }
    void await_suspend(std::coroutine_handle<> waiter) {
      turn_.waiter = waiter;
      launches_.pump();
    }
    Status await_resume() const { return turn_.cancelled; }

   private:
    GpuLaunches& launches_;
    GpuTurn& turn_;
  };
  Turn turn(ShardRun& run) { return {*this, run.turn}; }

  // What the set of all ranks has for NCCL; null: nothing yet.
  const NcclGroup* nccl_of_world() const { return host_.world().nccl.get(); }

  // The shard has come to its end.
  void end(ShardRun& run, ProcessSet& set);
  // What has not had its turn in the set ends with `why`.
  void cancel(ProcessSet& set, const Status& why);
  // Shards that have not ended.
  bool is_idle() const { return unfinished_ == 0; }

 private:
  // Of one that has been settled.
  struct QueuedTurn {
    uint64_t time = 0;
    int32_t set = 0;
    ShardRun* run = nullptr;
    bool is_last = true;  // turn of the shard's
  };
  static bool is_later(const QueuedTurn& a, const QueuedTurn& b);
  void pump();
  static void report_progress(ProcessSet& set);
  // Of those that have had their turn and not ended, the smallest number that is free.
  int take_timeline_row();

  const uint64_t credit_bytes_;
  const int lanes_;
  GpuLaunchesHost& host_;
  std::vector<QueuedTurn> turns_;  // the next is the last
  int unfinished_ = 0;
  std::vector<bool> rows_used_;  // of the timeline
  bool pumping_ = false;
  int holds_ = 0;
};

}  // namespace perseus
