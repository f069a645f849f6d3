// Polling between whose looks other threads may use the processor. It is the fastest way to wait
// for somebody who answers within microseconds, and the worst where others compute: to them a yield
// gives a whole slice of time, of milliseconds, while a sleeper is let in as soon as it is woken.
#pragma once

#include <sched.h>

#include <chrono>
#include <cstdint>

namespace perseus {

// Between two looks without a yield: leaves the processor's other half to others.
inline void pause_processor() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// One thread's.
class Yielding {
 public:
  using Clock = std::chrono::steady_clock;

  // Whether to poll now rather than to sleep: not where others have lately been seen to compute.
  bool pays(Clock::time_point now) const { return now >= not_before_; }

  // Whether nobody else has wanted this processor for many yields.
  bool is_alone() const { return in_vain_ >= kManyYields; }

  // Lets others run, once.
  void yield(Clock::time_point now) {
    sched_yield();
    const Clock::time_point back = Clock::now();
    in_vain_ = back - now < kSwitch ? in_vain_ + 1 : 0;
    if (back - now > kSlice) not_before_ = back + kPause;
  }

 private:
  // More than threads that pass the processor around take, less than the 3 to 4 ms between the
  // kernel's ticks, after which a thread that computes gives it back.
  static constexpr std::chrono::microseconds kSlice{2500};
  static constexpr std::chrono::milliseconds kPause{100};
  // Less than it takes to run somebody else and come back.
  static constexpr std::chrono::nanoseconds kSwitch{1200};
  Clock::time_point not_before_{};
  static constexpr uint32_t kManyYields = 64;
  uint32_t in_vain_ = 0;  // the last so many
};

}  // namespace perseus
