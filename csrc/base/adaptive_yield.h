// Polling with sched_yield between looks. It is the fastest way to wait for an answer that comes
// within microseconds, and the slowest on a processor where other threads compute: a yield gives
// such a thread a whole time slice, milliseconds long, while a thread that sleeps is scheduled as
// soon as it is woken. So a thread first looks without a yield for as long as an answer takes whose
// sender is running.
#pragma once

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace perseus {

// For polling without a yield: leaves the core's resources to its other hardware thread.
inline void cpu_relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Each thread has its own.
class AdaptiveYield {
 public:
  using Clock = std::chrono::steady_clock;

  // Returns whether to poll rather than sleep now: false for a while after a yield has shown that
  // other threads compute on this processor.
  bool is_worthwhile(Clock::time_point now) const { return now >= not_before_; }

  // Returns whether to look again without a yield, `waited` after the last answer. That is for
  // kLongPoll where no other thread has used this processor in many yields; else for kShortPoll,
  // if answers mostly come within that time.
  bool expects_answer(Clock::duration waited) const {
    if (waited < kShortPoll && prompt_answers_ > 0) return true;
    return waited < kLongPoll && unused_yields_ >= kManyYields;
  }
  // An answer has come after this time.
  void note_answer(Clock::duration waited) {
    prompt_answers_ = waited < kShortPoll ? std::min(prompt_answers_ + 1, kManyAnswers)
                                          : std::max(prompt_answers_ - 1, 0);
  }

  // Lets other threads run, once.
  void yield(Clock::time_point now) {
    sched_yield();
    const Clock::time_point back = Clock::now();
    unused_yields_ = back - now < kSwitch ? unused_yields_ + 1 : 0;
    if (back - now > kSlice) not_before_ = back + kPause;
  }

 private:
  // Longer than a yield takes among threads that only pass the processor around, and shorter than
  // the 3 to 4 ms between the kernel's ticks, after which a thread that computes gives it back.
  static constexpr std::chrono::microseconds kSlice{2500};
  static constexpr std::chrono::milliseconds kPause{100};
  // Less than it takes to run another thread and come back.
  static constexpr std::chrono::nanoseconds kSwitch{1200};
  static constexpr uint32_t kManyYields = 64;
  static constexpr std::chrono::microseconds kLongPoll{20};
  // As long as a rank takes for some dozens of small operations, and about as long as it takes to
  // give the processor away and get it back.
  static constexpr std::chrono::microseconds kShortPoll{4};
  static constexpr int kManyAnswers = 8;

  Clock::time_point not_before_{};
  uint32_t unused_yields_ = 0;  // consecutive yields in which no other thread ran
  int prompt_answers_ = 0;      // more than late ones, of late
};

}  // namespace perseus
