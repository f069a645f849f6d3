// Decides whether threads that wait may run the engine's loop in place of its own thread.
#pragma once

#include "base/event_loop.h"
#include "engine/operation_tracker.h"
#include "engine/submission_queue.h"
#include "execution/executor.h"

namespace perseus {

class EngineHandoffPolicy final : public LoopHandoffPolicy {
 public:
  EngineHandoffPolicy(const SubmissionQueue& queue, const OperationTracker& tracker,
                      const Executor& executor)
      : queue_(queue), tracker_(tracker), executor_(executor) {}

  bool may_hand_off() const override { return queue_.may_hand_off_loop(); }
  bool has_pending_work() const override { return queue_.has_news(); }
  bool is_idle() const override {
    return tracker_.is_idle() && !has_pending_work() && executor_.is_idle();
  }
  bool has_bulk_work() const override { return tracker_.bytes() >= kBulkBytes; }

 private:
  // Moving this much takes some hundred times as long as a change of threads, so little is lost by
  // leaving it to the engine's thread. Threads that come and go would cost more.
  static constexpr int64_t kBulkBytes = 4 << 20;

  const SubmissionQueue& queue_;
  const OperationTracker& tracker_;
  const Executor& executor_;
};

}  // namespace perseus
