#include "engine/submission_queue.h"

#include <utility>

#include "codec/codec.h"

namespace perseus {

Status SubmissionQueue::submit(OperationPtr operation) {
  const Clock::time_point now = operation->submitted_at = Clock::now();
  const bool is_bound = operation->is_bound;
  const bool is_on_gpu = operation->gpu != nullptr;
  if (is_on_gpu) binding_.bind_all();
  bool is_first = true;
  {
    std::lock_guard lock(mutex_);
    if (!closed_.is_ok()) {
      const Status why = status_for(*operation, closed_);
      operation->give_back_name(names_);
      return why;
    }
    if (is_bound) binding_.add_operation();
    queue_.push_back(std::move(operation));
    is_first = !has_submissions_.exchange(true, std::memory_order_acq_rel);
  }
  if (!is_first && !loop_.is_handed_off()) return {};
  if (is_bound || is_on_gpu) {
    loop_.wake();
  } else {
    // A thread that has just waited is likely to wait for this operation as well, and then does all
    // the work by itself.
    loop_.wake_unless_helped(now);
  }
  return {};
}

void SubmissionQueue::refuse(int32_t set, std::string_view key, std::string reason) {
  {
    std::lock_guard lock(mutex_);
    refused_.push_back({set, std::string(key), std::move(reason)});
    if (has_submissions_.exchange(true, std::memory_order_acq_rel)) return;
  }
  loop_.wake();
}

void SubmissionQueue::close(const Status& why) {
  std::lock_guard lock(mutex_);
  if (closed_.is_ok()) closed_ = why;
}

bool SubmissionQueue::may_hand_off_loop() const {
  return !binding_.is_bound() && !has_user_codecs();
}

bool SubmissionQueue::poll() {
  if (!has_news()) return false;
  std::vector<RefusedCall> refused;
  {
    std::lock_guard lock(mutex_);
    // Something in the queue is for the engine's own thread, which has been recalled.
    if (loop_.is_handed_off() && !may_hand_off_loop()) return false;
    has_submissions_.store(false, std::memory_order_release);
    accepted_.swap(queue_);
    refused.swap(refused_);
  }
  sink_.accept(refused, accepted_);
  accepted_.clear();
  return true;
}

}  // namespace perseus
