// The queue between callers' threads and the engine's thread. It carries operations, and calls that
// failed before they could be submitted; the loop polls it.
#pragma once

#include <atomic>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/event_loop.h"
#include "engine/thread_binding.h"
#include "state/operation.h"

namespace perseus {

// A call that failed on this rank before its operation could be submitted.
struct RefusedCall {
  int32_t set = 0;
  std::string key, reason;
};

// Takes up what was submitted. Engine thread.
class SubmissionSink {
 public:
  // Both in the order of submission. The refused calls come first: an operation of the same name
  // can only have been submitted after. The sink may take the operations away.
  virtual void accept(std::span<const RefusedCall> refused, std::span<OperationPtr> operations) = 0;

 protected:
  ~SubmissionSink() = default;
};

class SubmissionQueue final : public Poller {
 public:
  SubmissionQueue(EventLoop& loop, Names& names, ThreadBinding& binding, SubmissionSink& sink)
      : loop_(loop), names_(names), binding_(binding), sink_(sink) {}

  // ---- Any thread.

  // Returns an error once the queue has been closed; the operation's name is then given back.
  Status submit(OperationPtr operation);
  void refuse(int32_t set, std::string_view key, std::string reason);
  // Refuses everything from now on, with this reason. Only the first call has an effect.
  void close(const Status& why);
  bool has_news() const { return has_submissions_.load(std::memory_order_acquire); }
  // Lives as long as the queue.
  const std::atomic<bool>& is_closed() const { return is_closed_; }
  // Returns whether a thread that waits may run the loop now.
  bool may_hand_off_loop() const;

  // ---- Engine thread: Poller.
  bool poll() override;
  bool prepare_to_sleep() override { return !has_news(); }
  void awake() override {}

 private:
  EventLoop& loop_;
  Names& names_;
  ThreadBinding& binding_;
  SubmissionSink& sink_;

  std::mutex mutex_;
  std::vector<OperationPtr> queue_;
  Clock::time_point first_submitted_at_;   // the first operation in the queue
  const char* first_submitter_ = nullptr;  // the thread that submitted it
  std::vector<RefusedCall> refused_;
  Status closed_;  // ok while submissions are accepted
  std::atomic<bool> has_submissions_{false}, is_closed_{false};

  std::vector<OperationPtr> accepted_;  // the queue's other half; engine thread
};

}  // namespace perseus
