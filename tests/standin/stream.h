// A stream: a thread that does its pieces of work in order.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>

#include "clock.h"

namespace perseus::standin {

// A place in a stream's work that others can wait for, as the last record of an event.
struct Mark {
  void reach() {
    reached.store(true);
    reached.notify_all();
  }
  void wait() const { reached.wait(false); }

  std::atomic<bool> reached = false;
  Clock clock;  // of the stream when recorded
};

// Any thread, but for `clock`, which simulator.cc guards.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(int device, size_t component);

  // Starts the thread at the first call. It is detached and keeps the stream alive: as with the
  // driver, a stream that was destroyed still does its work.
  void push(std::function<void()> step);
  // Sleeps as PERSEUS_STANDIN_DELAY_US says, then works.
  void push_delayed(std::function<void()> work);
  // No more work will follow.
  void close();

  void hold();
  void release();

  const int device;
  const size_t component;
  std::atomic<bool> is_capturing = false;
  Clock clock;

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> steps_;
  bool is_started_ = false;
  bool is_closed_ = false;
  std::shared_ptr<Mark> hold_;
  std::mt19937_64 random_;  // the thread's
};

}  // namespace perseus::standin
