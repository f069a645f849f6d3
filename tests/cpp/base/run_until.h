// Turns an event loop on the calling thread, for tests of what happens on one.
#pragma once

#include <gtest/gtest.h>

#include <chrono>

#include "base/event_loop.h"

namespace perseus {

// Turns the loop until `done()`; a failure after 20 s.
template <typename Done>
void run_until(EventLoop& loop, Done done) {
  const auto end = Clock::now() + std::chrono::seconds(20);
  while (!done() && Clock::now() < end) loop.run_once(std::chrono::milliseconds(10));
  EXPECT_TRUE(done());
}

// Turns the loop for this long.
inline void run_for(EventLoop& loop, Clock::duration time) {
  const auto end = Clock::now() + time;
  while (Clock::now() < end) loop.run_once(std::chrono::milliseconds(10));
}

}  // namespace perseus
