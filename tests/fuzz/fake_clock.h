// A clock that stands still until the program moves it, in the place of the C library's: minutes of
// time-outs pass in no time, and in the same way each time. For programs of one source and thread.
#pragma once

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>

namespace perseus::fuzz {

inline timespec monotonic_time{1000, 0};

inline void pass(std::chrono::nanoseconds time) {
  const int64_t nanoseconds = monotonic_time.tv_nsec + time.count();
  monotonic_time.tv_sec += nanoseconds / 1'000'000'000;
  monotonic_time.tv_nsec = nanoseconds % 1'000'000'000;
}

}  // namespace perseus::fuzz

// std::chrono::steady_clock calls this. libFuzzer measures with other clocks.
extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock,
                                                                    timespec* time) noexcept {
  if (clock != CLOCK_MONOTONIC) return static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  *time = perseus::fuzz::monotonic_time;
  return 0;
}
