// Polling between whose looks other threads may use the processor. It is the fastest way to wait
// for somebody who answers within microseconds, and the worst where others compute: to them a yield
// gives a whole slice of time, of milliseconds, while a sleeper is let in as soon as it is woken.
#pragma once

#include <sched.h>

#include <chrono>

namespace perseus {

// One thread's.
class Yielding {
 public:
  using Clock = std::chrono::steady_clock;

  // Whether to poll now rather than to sleep: not where others have lately been seen to compute.
  bool pays(Clock::time_point now) const { return now >= not_before_; }

  // Lets others run, once.
  void yield(Clock::time_point now) {
    sched_yield();
    const Clock::time_point back = Clock::now();
    if (back - now > kSlice) not_before_ = back + kPause;
  }

 private:
  // More than threads that pass the processor around take, less than the 3 to 4 ms between the
  // kernel's ticks, after which a thread that computes gives it back.
  static constexpr std::chrono::microseconds kSlice{2500};
  static constexpr std::chrono::milliseconds kPause{100};
  Clock::time_point not_before_{};
};

}  // namespace perseus
