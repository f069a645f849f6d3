// A switch that threads can wait for, with a time-out: a futex, so that waiting burns no
// CPU and setting costs a system call only if somebody waits.
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

  // Sets it, but for waking who sleeps until it is; whether somebody may.
  bool set_silently() { return state_.exchange(kSet, std::memory_order_acq_rel) == kWaitedFor; }
  void wake() { syscall(SYS_futex, address(), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }

  // Clears it, for who alone waits for it; whether it was set. What led to that has been seen then.
  bool take() { return state_.exchange(kClear, std::memory_order_acq_rel) == kSet; }

  // For another use, by the one who owns it alone.
  void clear() { state_.store(kClear, std::memory_order_relaxed); }

  // Whether it was set before the time-out; none waits without bound. For the first `spin` of it
  // the thread does not sleep but yields its processor, again and again: see yield_until_set.
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
  // Waking a thread that sleeps costs the one that sets the event a system call, and then the
  // scheduler puts it wherever there seems to be room, often behind a thread that polls. A thread
  // that yields stays in its place and costs nobody more than a switch.
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
