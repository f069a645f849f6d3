// Operations that MXNet's engine has been given and that have not ended.
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
  void take_away() {
    const std::lock_guard lock(mutex_);
    --waiting_;
    has_shrunk_.notify_all();
  }
  // Waits until it is empty, or has not shrunk for so long. How many are left.
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

Backlog& backlog();

}  // namespace perseus::mxnet
