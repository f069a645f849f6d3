#include "engine/submission_queue.h"

#include <utility>

#include "codec/codec.h"

namespace perseus {

Status SubmissionQueue::submit(OperationPtr operation) {
  static thread_local const char this_thread = 0;  // its address tells the threads apart
  const bool is_bound = operation->is_bound;
  const bool is_on_gpu = operation->gpu != nullptr;
  if (is_on_gpu) binding_.bind_all();
  bool is_first = true, follows_own = false;
  Clock::time_point now;
  {
    std::lock_guard lock(mutex_);
    if (!closed_.is_ok()) {
      const Status why = status_for(*operation, closed_);
      operation->give_back_name(names_);
      return why;
    }
    if (is_bound) binding_.add_operation();
    // One look at the clock serves all operations that are taken up together.
    follows_own = !queue_.empty() && first_submitter_ == &this_thread;
    if (!follows_own) now = Clock::now();
    if (queue_.empty()) {
      first_submitted_at_ = now;
      first_submitter_ = &this_thread;
    }
    operation->submitted_at = first_submitted_at_;
    queue_.push_back(std::move(operation));
    // It changes under the lock only.
    is_first = !has_submissions_.load(std::memory_order_relaxed);
    if (is_first) has_submissions_.exchange(true, std::memory_order_acq_rel);
  }
  if (!is_first && !loop_.is_handed_off()) return {};
  if (is_bound || is_on_gpu) {
    loop_.wake();
  } else if (!follows_own) {
    // A thread that has just waited is likely to wait for this operation as well, and then does all
    // the work by itself. What it has decided for its first operation holds for those that follow.
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
  is_closed_.store(true, std::memory_order_release);
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
