// One thread's loop over everything that can happen to the engine: sockets, timers, neighbours in
// shared memory, work posted by other threads. Event-driven: with nothing to do it sleeps in
// epoll_wait and uses no CPU.
#pragma once

#include <chrono>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/status.h"

namespace perseus {

using Clock = std::chrono::steady_clock;
class Event;

// Told when its file descriptor is ready. Loop thread.
class FdHandler {
 public:
  virtual void on_ready(uint32_t epoll_events) = 0;

 protected:
  ~FdHandler() = default;
};

// Something that makes progress without a file descriptor (a ring in shared memory, MPI requests).
// All calls on the loop thread.
class Poller {
 public:
  // Moves what can be moved; true if anything moved.
  virtual bool poll() = 0;
  // The loop is about to sleep. Ask the other side to ring our doorbell (EventLoop::doorbell_fd)
  // when there is news, then look once more: false if there is news already. A Poller that has
  // nobody to ring it (MPI) returns false while it has work outstanding.
  virtual bool prepare_to_sleep() = 0;
  // The loop is awake again: no doorbell needed.
  virtual void awake() = 0;

 protected:
  ~Poller() = default;
};

// Says whether threads that wait may run the loop. The first two on any thread, the others on one
// that runs the loop.
class LoopLender {
 public:
  // Whether all that the loop does now may be done on any thread.
  virtual bool may_lend() const = 0;
  // Whether something waits for the loop to take it up.
  virtual bool has_news() const = 0;
  // Whether nothing is under way for this process, so that the loop may well stand still for a
  // moment.
  virtual bool is_at_rest() const = 0;
  // Returns whether so much is under way that a waiting thread may as well leave all of it to the
  // loop's own thread.
  virtual bool has_bulk_work() const = 0;

 protected:
  ~LoopLender() = default;
};

class EventLoop {
 public:
  // spin: how long the loop keeps polling after the last progress before it sleeps in epoll_wait.
  explicit EventLoop(std::chrono::microseconds spin = std::chrono::microseconds(20));
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;

  // Whether it could have its two descriptors; it cannot run without.
  const Status& status() const;

  // Runs until stop(). The calling thread is the loop's own from then on, and the loop thread but
  // while another one helps.
  void run();
  // One turn: whatever is ready now, waiting for at most `wait` if nothing is. For tests.
  bool run_once(std::chrono::milliseconds wait);
  // Any thread.
  void stop();

  // From now on threads that wait may run the loop. Before run().
  void lend_by(const LoopLender& lender);
  // For a thread that waits for what the loop brings about: runs the loop until the event is set,
  // if its own thread has nothing to do and lends it. Returns sooner at `until`, when nothing has
  // come for as long as the loop polls, or when the loop's own thread is needed. Any thread but the
  // loop thread.
  void help(const Event& awaited, Clock::time_point until);
  // Whether its own thread does not run the loop now. Any thread.
  bool is_lent() const;

  // Resumes the coroutine in the next turn. Loop thread.
  void schedule(std::coroutine_handle<> handle);
  // Runs the function on the loop thread, in order of posting. Any thread; wakes the loop.
  void post(std::function<void()> function);
  // Lets the loop's pollers run after this, for which it is woken if it sleeps or is lent. Any
  // thread, async-signal-safe; a write to doorbell_fd by another process does the same.
  void wake();
  // The same for what a poller finds, but that a thread which has just helped has some microseconds
  // to come back and see to it.
  void wake_unless_helped(Clock::time_point now);
  // An eventfd that wakes this loop; may be passed to another process of this host.
  int doorbell_fd() const;

  // Loop thread, or before run(). The handler and the poller must outlive their registration;
  // removing one from within its own call is allowed.
  void watch(int fd, uint32_t epoll_events, FdHandler* handler);  // also changes the events
  void unwatch(int fd);
  void add_poller(Poller* poller);
  void remove_poller(Poller* poller);

  // Calls `function` once at `when`. Loop thread. cancel_timer of one that has fired is harmless.
  using TimerId = uint64_t;
  TimerId call_at(Clock::time_point when, std::function<void()> function);
  void cancel_timer(TimerId id);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perseus
