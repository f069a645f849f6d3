// Counts what keeps a fork waiting: operations that were given to MXNet's engine and have not
// ended, and threads of MXNet's that are inside of libperseus.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

namespace perseus::mxnet {

// Any thread.
class Backlog {
 public:
  void add() {
    const std::lock_guard lock(mutex_);
    ++waiting_;
  }
  void remove() {
    const std::lock_guard lock(mutex_);
    --waiting_;
    has_shrunk_.notify_all();
  }
  // Waits until there are none, or until none has ended for `patience`. Returns how many are left.
  long settle(std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    while (waiting_ > 0) {
      if (has_shrunk_.wait_for(lock, patience) == std::cv_status::timeout) break;
    }
    return waiting_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable has_shrunk_;
  long waiting_ = 0;
};

// Counts one more for as long as it lives.
class InBacklog {
 public:
  explicit InBacklog(Backlog& backlog) : backlog_(backlog) { backlog_.add(); }
  InBacklog(const InBacklog&) = delete;
  ~InBacklog() { backlog_.remove(); }

 private:
  Backlog& backlog_;
};

Backlog& backlog();

}  // namespace perseus::mxnet
