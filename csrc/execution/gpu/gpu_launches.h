// Launches shards on GPUs in the same order on all ranks. Within a process set, LaunchOrder settles
// the order at each agreement. Among sets with ranks in common, the launch whose agreement has the
// earlier time comes first (Agreement::time; if the times are equal, the set with the lower id). A
// round that is under way in another set may still end in an agreement with an earlier time. Before
// it launches, a rank then waits until that round ends, and asks the set's other ranks to end it.
//
//   add -> (settled) -> [prepared: its Task awaits its turn] -> its turn -> ended
//
// A shard that has halves (see LaunchOrder) awaits two turns.
//
// Engine thread.
#pragma once

#include <coroutine>
#include <cstdint>
#include <vector>

#include "execution/batch.h"

namespace perseus {

class GpuLaunchesHost {
 public:
  // The set of all ranks.
  virtual const ProcessSet& world() const = 0;
  // Returns whether another set may yet agree on launches with an earlier time. If so, makes that
  // set agree.
  virtual bool may_be_preceded(int32_t set, uint64_t time) = 0;
  // A launch of the set has ended here.
  virtual void launch_ended(ProcessSet& set) = 0;

 protected:
  ~GpuLaunchesHost() = default;
};

class GpuLaunches {
 public:
  GpuLaunches(uint64_t credit_bytes, int lanes, GpuLaunchesHost& host)
      : credit_bytes_(credit_bytes), lanes_(lanes), host_(host) {}

  // Shards of a set must come in the order of agreement.
  void add(ShardRun& run, bool has_halves);
  // Call when a set has agreed on something. Nothing is launched until settle() has been called as
  // often as hold(), since a set's new launches may have to come before all that are waiting.
  void hold() { ++holds_; }
  // Call when the shards that were agreed on have been added. Ends the hold.
  void settle(ProcessSet& set, const Agreement& agreement);

  // The shard's Task awaits this once the shard is prepared. A shard with halves awaits a second
  // turn, for its lower half, after launching the upper half. Awaiting returns an error if the
  // shard has been cancelled.
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

  // The NCCL group of the set of all ranks; null if there is none yet.
  const NcclGroup* nccl_of_world() const { return host_.world().nccl.get(); }

  // The shard has ended.
  void end(ShardRun& run, ProcessSet& set);
  // Cancels the set's shards that have not had their last turn: awaiting it returns `why`.
  void cancel(ProcessSet& set, const Status& why);
  // Returns whether all shards have ended.
  bool is_idle() const { return unfinished_ == 0; }

 private:
  // A turn that has been settled and has not come.
  struct QueuedTurn {
    uint64_t time = 0;
    int32_t set = 0;
    ShardRun* run = nullptr;
    bool is_last = true;  // the shard's last turn
  };
  static bool is_later(const QueuedTurn& a, const QueuedTurn& b);
  void pump();
  static void report_progress(ProcessSet& set);
  // Takes the lowest free row of the timeline, for a shard that has its turn.
  int take_timeline_row();

  const uint64_t credit_bytes_;
  const int lanes_;
  GpuLaunchesHost& host_;
  std::vector<QueuedTurn> turns_;  // sorted; the next turn is the last element
  int unfinished_ = 0;
  std::vector<bool> rows_used_;  // of the timeline
  bool pumping_ = false;
  int holds_ = 0;
};

}  // namespace perseus
