// A timer of which its owner needs one at a time, and which dies with the owner. Loop thread.
#pragma once

#include "base/event_loop.h"

namespace perseus {

class Alarm {
 public:
  explicit Alarm(EventLoop& loop) : loop_(loop) {}
  Alarm(const Alarm&) = delete;
  ~Alarm() { cancel(); }

  bool is_set() const { return timer_ != 0; }
  // In place of what was set before. When `action` is called, nothing is set any more.
  template <typename Action>
  void set(Clock::time_point when, Action action) {
    cancel();
    timer_ = loop_.call_at(when, [this, action] {
      timer_ = 0;
      action();
    });
  }
  void cancel() {
    if (timer_ != 0) loop_.cancel_timer(timer_);
    timer_ = 0;
  }

 private:
  EventLoop& loop_;
  EventLoop::TimerId timer_ = 0;
};

}  // namespace perseus
