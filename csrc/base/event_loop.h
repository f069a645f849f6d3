// The engine's event loop: sockets, timers, peers in shared memory, and functions that other
// threads post. With nothing to do it sleeps in epoll_wait and uses no CPU.
#pragma once

#include <chrono>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/file_descriptor.h"
#include "base/status.h"

namespace perseus {

using Clock = std::chrono::steady_clock;
class Event;

// Handles the events of a file descriptor. Loop thread.
class FdHandler {
 public:
  virtual void on_ready(uint32_t epoll_events) = 0;

 protected:
  ~FdHandler() = default;
};

// Makes progress without a file descriptor (a ring in shared memory, MPI requests). Loop thread.
class Poller {
 public:
  // Makes what progress it can; returns whether there was any.
  virtual bool poll() = 0;
  // The loop is about to sleep. Asks the other side to ring this loop's doorbell
  // (EventLoop::doorbell_fd) when there is work, then looks once more: false if there is work
  // already. A Poller that nobody can wake (MPI) returns false while it has work outstanding.
  virtual bool prepare_to_sleep() = 0;
  // The loop is awake again: the doorbell need not be rung.
  virtual void awake() = 0;

 protected:
  ~Poller() = default;
};

// Decides whether threads that wait may run the loop; see base/loop_handoff.h. The first two
// functions are called on any thread, the others on the thread that runs the loop.
class LoopHandoffPolicy {
 public:
  // Returns whether everything that the loop does now may be done on any thread.
  virtual bool may_hand_off() const = 0;
  // Returns whether something waits for the loop to handle it.
  virtual bool has_pending_work() const = 0;
  // Returns whether nothing is under way for this process, so that the loop can afford to stand
  // still for a moment.
  virtual bool is_idle() const = 0;
  // Returns whether so much is under way that a waiting thread should leave it to the loop's own
  // thread.
  virtual bool has_bulk_work() const = 0;

 protected:
  ~LoopHandoffPolicy() = default;
};

class EventLoop {
 public:
  // spin: how long the loop keeps polling after the last progress before it sleeps in epoll_wait.
  // doorbell: of make_doorbell, so that peers may ring it for later loops, too; null: the loop has
  // one of its own.
  explicit EventLoop(std::chrono::microseconds spin = std::chrono::microseconds(20),
                     std::shared_ptr<const FileDescriptor> doorbell = nullptr);
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  // A doorbell for one loop after another. The loop's status says if it could not be made.
  static std::shared_ptr<const FileDescriptor> make_doorbell();

  // Not ok if the loop could not get its two file descriptors; then it must not run.
  const Status& status() const;

  // Runs until stop(). The calling thread is the loop's own from then on. It is also the loop
  // thread, except while another one helps.
  void run();
  // Handles what is ready now; waits for up to `wait` if nothing is. For tests.
  bool run_once(std::chrono::milliseconds wait);
  // Any thread.
  void stop();

  // Lets threads that wait run the loop when `policy` allows it. Call before run().
  void set_handoff_policy(const LoopHandoffPolicy& policy);
  // For a thread that waits for something the loop brings about: runs the loop until the event is
  // set, if the loop's own thread has nothing to do and hands it off. Returns sooner at `until`,
  // when nothing has come for as long as the loop polls, or when the loop's own thread is needed.
  // Any thread but the loop thread.
  void help(const Event& awaited, Clock::time_point now, Clock::time_point until);
  // For a thread that does without the loop what it otherwise waits for: runs one turn of a loop
  // that has been handed off, which else goes back to its own thread. Threads as for help.
  void visit();
  // Returns whether the loop's own thread has handed it off. Any thread.
  bool is_handed_off() const;

  // Resumes the coroutine in the next turn. Loop thread.
  void schedule(std::coroutine_handle<> handle);
  // Runs the function on the loop thread, in order of posting. Any thread; wakes the loop.
  void post(std::function<void()> function);
  // Makes the loop run its pollers again, waking it if it sleeps or is handed off. Any thread;
  // async-signal-safe. Another process does the same by writing to doorbell_fd.
  void wake();
  // The same, but leaves a thread that has just helped some microseconds to come back and run the
  // pollers itself.
  void wake_unless_helped(Clock::time_point now);
  // An eventfd that wakes this loop; may be passed to another process of this host.
  int doorbell_fd() const;

  // Loop thread, or before run(). The handler and the poller must outlive their registration. They
  // may be removed from within their own call.
  void watch(int fd, uint32_t epoll_events, FdHandler* handler);  // also changes the events
  void unwatch(int fd);
  void add_poller(Poller* poller);
  void remove_poller(Poller* poller);

  // Calls `function` once at `when`. Loop thread. Cancelling a timer that has fired is harmless.
  using TimerId = uint64_t;
  TimerId call_at(Clock::time_point when, std::function<void()> function);
  void cancel_timer(TimerId id);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace perseus
