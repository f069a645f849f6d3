// A timer that its owner sets for one time at a time, and that is cancelled on destruction. Loop
// thread.
#pragma once

#include "base/event_loop.h"

namespace perseus {

class Alarm {
 public:
  explicit Alarm(EventLoop& loop) : loop_(loop) {}
  Alarm(const Alarm&) = delete;
  ~Alarm() { cancel(); }

  bool is_set() const { return timer_ != 0; }
  // Replaces an earlier time. The alarm is not set any more when `action` is called.
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
