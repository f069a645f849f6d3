#include "execution/gpu/gpu_launches.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "observe/log.h"

namespace perseus {
namespace {

// The GPUs' rows in the timeline begin here.
constexpr int kFirstRow = 1000;

}  // namespace

void GpuLaunches::add(ShardRun& run, bool has_halves) {
  ProcessSet& set = *run.batch->set;
  if (set.launches == nullptr) set.launches = std::make_unique<LaunchOrder>(credit_bytes_, lanes_);
  run.turn = GpuTurn{};
  run.turn.run = &run;
  run.turn.urgency = run.shard.priority;
  run.turn.size = run.shard.bytes;
  run.turn.has_halves = has_halves;
  run.timeline_row = -1;
  set.launches->add(&run.turn);
  unfinished_ += 1;
}

bool GpuLaunches::is_later(const QueuedTurn& a, const QueuedTurn& b) {
  return std::tie(a.time, a.set) > std::tie(b.time, b.set);
}

void GpuLaunches::settle(ProcessSet& set, const Agreement& agreement) {
  if (set.launches != nullptr) {
    const auto settled = set.launches->settle(agreement.launches_ended);
    // Turns of the same time and set come in this order, so each goes in front of the ones before.
    for (const LaunchTurn& next : settled) {
      auto* turn = static_cast<GpuTurn*>(next.launch);
      turn->is_settled = true;
      const QueuedTurn queued{agreement.time, set.id, turn->run, next.is_last()};
      turns_.insert(std::lower_bound(turns_.begin(), turns_.end(), queued, is_later), queued);
    }
    report_progress(set);
  }
  --holds_;
  // A round that others waited for may have ended.
  pump();
}

void GpuLaunches::pump() {
  // A shard that is resumed may call pump() again; the loop below goes on.
  if (pumping_ || holds_ > 0) return;
  pumping_ = true;
  while (!turns_.empty()) {
    const QueuedTurn next = turns_.back();
    ShardRun& run = *next.run;
    const bool is_prepared = run.turn.is_over || run.turn.waiter != nullptr;
    if (!is_prepared || host_.may_be_preceded(next.set, next.time)) break;
    turns_.pop_back();
    run.turn.has_come = next.is_last;
    if (run.turn.is_over) continue;
    PERSEUS_LOG(kTrace, "launch " << run.turn.number << " of process set " << next.set
                                  << " at time " << next.time << ": "
                                  << display_name(run.agreed().key()));
    if (run.timeline_row < 0) run.timeline_row = kFirstRow + take_timeline_row();
    std::exchange(run.turn.waiter, nullptr).resume();
  }
  pumping_ = false;
}

int GpuLaunches::take_timeline_row() {
  const auto free_row = std::find(rows_used_.begin(), rows_used_.end(), false);
  const auto row = static_cast<int>(free_row - rows_used_.begin());
  if (free_row == rows_used_.end()) {
    rows_used_.push_back(true);
  } else {
    *free_row = true;
  }
  return row;
}

void GpuLaunches::end(ShardRun& run, ProcessSet& set) {
  unfinished_ -= 1;
  run.turn.is_over = true;
  if (run.timeline_row >= 0) rows_used_[run.timeline_row - kFirstRow] = false;
  if (run.turn.is_settled) set.launches->end(run.turn);
  report_progress(set);
  pump();
}

// Waiting launches are settled by an agreement. The last agreement may have been under way already
// when the last launch ended, and so not have counted it.
void GpuLaunches::report_progress(ProcessSet& set) {
  const bool has_waiting = set.launches->has_waiting();
  set.negotiator->take_part_for_launches(has_waiting);
  set.negotiator->launches_ended(set.launches->ended_here(), has_waiting);
}

void GpuLaunches::cancel(ProcessSet& set, const Status& why) {
  if (set.launches == nullptr) return;
  std::vector<GpuTurn*> cancelled;
  for (Launch* launch : set.launches->cancel()) cancelled.push_back(static_cast<GpuTurn*>(launch));
  std::erase_if(turns_, [&](const QueuedTurn& queued) {
    if (queued.set == set.id && queued.is_last) cancelled.push_back(&queued.run->turn);
    return queued.set == set.id;
  });
  // Nothing must be launched meanwhile.
  const bool was_pumping = std::exchange(pumping_, true);
  for (GpuTurn* turn : cancelled) {
    turn->has_come = true;
    turn->cancelled = why;
    if (turn->waiter != nullptr) std::exchange(turn->waiter, nullptr).resume();
  }
  pumping_ = was_pumping;
}

}  // namespace perseus
