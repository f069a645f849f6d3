// A flag that threads can wait for, with a time-out. It is a futex: waiting uses no CPU, and
// setting costs a system call only if a thread waits.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>
#include <optional>

#include "base/adaptive_yield.h"

namespace perseus {

// Any thread.
class Event {
 public:
  bool is_set() const { return state_.load(std::memory_order_acquire) == kSet; }

  void set() {
    if (set_silently()) wake();
  }

  // Sets the flag without waking sleeping threads; returns whether there may be any.
  bool set_silently() { return state_.exchange(kSet, std::memory_order_acq_rel) == kWaitedFor; }
  void wake() { syscall(SYS_futex, address(), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

  // Clears the flag, and returns whether it was set. For the only thread that waits for it; all
  // that happened before the flag was set is then visible to it.
  bool take() { return state_.exchange(kClear, std::memory_order_acq_rel) == kSet; }

  // Clears the flag for another use. No other thread may use it now.
  void clear() { state_.store(kClear, std::memory_order_relaxed); }

  // Returns whether the flag was set before the time-out; without one, waits until it is. During
  // the first `spin` of that time the thread does not sleep but yields its processor repeatedly:
  // see yield_until_set.
  bool wait(std::optional<std::chrono::nanoseconds> time_out = {},
            std::chrono::nanoseconds spin = std::chrono::nanoseconds(0)) {
    if (is_set()) return true;
    const auto began = std::chrono::steady_clock::now();
    const auto deadline = began + time_out.value_or(std::chrono::nanoseconds(0));
    yield_until_set(began + std::min(spin, time_out.value_or(spin)));
    while (!is_set()) {
      timespec left{};
      if (time_out) {
        const auto rest = std::chrono::duration_cast<std::chrono::nanoseconds>(
            deadline - std::chrono::steady_clock::now());
        if (rest.count() <= 0) return false;
        left.tv_sec = static_cast<time_t>(rest.count() / 1'000'000'000);
        left.tv_nsec = static_cast<long>(rest.count() % 1'000'000'000);
      }
      uint32_t expected = kClear;
      state_.compare_exchange_strong(expected, kWaitedFor, std::memory_order_acq_rel);
      if (expected == kSet) return true;
      syscall(SYS_futex, address(), FUTEX_WAIT_PRIVATE, kWaitedFor, time_out ? &left : nullptr,
              nullptr, 0);
    }
    return true;
  }

 private:
  // Waking a sleeping thread costs the thread that sets the event a system call, and the scheduler
  // then places the woken thread where there seems to be room, often behind a thread that polls. A
  // thread that yields stays where it is and costs no more than a switch.
  void yield_until_set(std::chrono::steady_clock::time_point until) const {
    thread_local AdaptiveYield yields;
    for (auto now = std::chrono::steady_clock::now();
         !is_set() && now < until && yields.is_worthwhile(now);
         now = std::chrono::steady_clock::now()) {
      yields.yield(now);
    }
  }

  static constexpr uint32_t kClear = 0, kWaitedFor = 1, kSet = 2;
  uint32_t* address() { return reinterpret_cast<uint32_t*>(&state_); }
  std::atomic<uint32_t> state_{kClear};
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
};

}  // namespace perseus
