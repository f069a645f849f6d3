// Decides which thread runs an event loop: the loop's own thread or, while that has nothing to do,
// a thread that waits for something the loop brings about. Such a thread finds its result without a
// switch between threads (leader and followers, Schmidt 2000); a small operation takes less time
// than putting a thread to sleep and waking it.
//
// The owner (the loop's own thread) hands the loop to a thread that asks for it, and sleeps. It
// takes the loop back when it is recalled, or when two checks in a row find that nobody has run the
// loop in between. An event that arrives without a recall waits at most until these checks, so the
// interval between them bounds its delay. The interval grows from 0.1 ms as long as the checks find
// the loop being run, because each check costs the thread that runs it some 10 us. Work of a thread
// that is about to wait is left to it meanwhile, for as long as WaitHabit calls prompt.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/event.h"

namespace perseus {

// Predicts whether a thread that leaves the loop with work unfinished comes back at once: a program
// that waits for many operations one by one does, one that computes after each wait does not. Any
// thread.
class ReturnPredictor {
 public:
  using Clock = std::chrono::steady_clock;
  // A return within this time counts as prompt. Long enough to find some dozens of operations done
  // already, but short, since nobody runs the loop meanwhile.
  static constexpr std::chrono::microseconds kPrompt{50};
  // Each prompt return adds a point, up to kMaxPoints; each late one costs kPenalty. From
  // kThreshold points on a return is expected. A single interruption of the thread does not undo a
  // habit.
  static constexpr int kMaxPoints = 16, kPenalty = 4, kThreshold = 4;

  void note_leave(Clock::time_point now) {
    left_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }
  void note_return(Clock::time_point now) {
    if (!is_away()) return;
    const Clock::time_point left{Clock::duration(left_.exchange(0, std::memory_order_relaxed))};
    const int points = points_.load(std::memory_order_relaxed);
    const bool is_prompt = now - left < kPrompt;
    points_.store(is_prompt ? std::min(points + 1, kMaxPoints) : std::max(points - kPenalty, 0),
                  std::memory_order_relaxed);
  }
  bool is_away() const { return left_.load(std::memory_order_relaxed) != 0; }
  bool expects_return() const { return points_.load(std::memory_order_relaxed) >= kThreshold; }

 private:
  std::atomic<Clock::rep> left_{0};  // 0: nobody is away
  std::atomic<int> points_{0};
};

// Predicts whether a thread that brings the loop work soon waits for it, as a program does that
// calls collectives one by one, or a few at once. One that only hands work over does not. The
// thread's own.
class WaitHabit {
 public:
  using Clock = std::chrono::steady_clock;
  // A wait within this time of the first work that it may be for counts as prompt. That is as long
  // as an interpreter takes for a few calls, and the longest for which work lies about if the
  // prediction is wrong.
  static constexpr std::chrono::microseconds kPrompt{200};
  static constexpr int kMaxPoints = 8, kPenalty = 4, kThreshold = 4;

  void note_work(Clock::time_point now) {
    if (brought_ != Clock::time_point()) {
      if (now - brought_ < kPrompt) return;
      count(false);
    }
    brought_ = now;
  }
  void note_wait(Clock::time_point now) {
    if (brought_ == Clock::time_point()) return;
    count(now - std::exchange(brought_, Clock::time_point()) < kPrompt);
  }
  bool expects_wait() const { return points_ >= kThreshold; }

 private:
  void count(bool is_prompt) {
    points_ = is_prompt ? std::min(points_ + 1, kMaxPoints) : std::max(points_ - kPenalty, 0);
  }

  Clock::time_point brought_;  // the first work not waited for; the epoch: there is none
  int points_ = 0;
};

class LoopHandoff {
 public:
  using Clock = std::chrono::steady_clock;
  // How long the owner leaves the loop to a thread that has finished its work there and may come
  // back with more.
  static constexpr std::chrono::microseconds kGrace{50};
  // Between two checks by the owner.
  static constexpr std::chrono::microseconds kFirstInterval{100}, kMaxInterval{1000};
  // After a thread did not come back, no grace is given for the first of these times, and for twice
  // as long as before if that happens again within kVisitsToTrust visits.
  static constexpr std::chrono::milliseconds kFirstNoGrace{1}, kMaxNoGrace{128};
  static constexpr uint32_t kVisitsToTrust = 64;

  // ---- For the owner, which has the loop from open() to close() except while it is handed off.

  void open() {
    running_.lock();
    is_open_ = true;
  }
  void close() {
    is_open_ = false;
    running_.unlock();
  }
  bool is_requested() const { return requests_.load(std::memory_order_relaxed) > 0; }
  // A recall after this ends the next hand_off().
  void clear_recalls() { recalled_.take(); }
  enum class Return {
    kRecalled,     // there is work for the owner
    kNoWorkFound,  // the thread that had the loop found nothing to do for long
    kUnused,       // nobody has run the loop for long
  };
  // Returns when the owner has the loop again. `has_pending_work`, called on any thread, says
  // whether something waits in the loop that a helping thread is expected to handle.
  template <typename HasPendingWork>
  Return hand_off(HasPendingWork has_pending_work) {
    is_handed_off_.store(true, std::memory_order_seq_cst);
    running_.unlock();
    Return why = Return::kRecalled;
    Clock::duration pause = interval_;
    uint32_t seen = visits_.load(std::memory_order_relaxed);
    while (!recalled_.wait(pause)) {
      const auto now = Clock::now();
      const uint32_t visits = visits_.load(std::memory_order_relaxed);
      if (is_awaiting(now)) {
        pause = kGrace;
      } else if (std::exchange(seen, visits) != visits) {
        interval_ = std::min(2 * interval_, kMaxInterval);
        pause = has_pending_work() || predictor_.is_away() ? kGrace : interval_;
      } else if (running_.try_lock()) {  // else a thread runs the loop and handles all there is
        if (has_pending_work() || predictor_.is_away()) suspend_grace(now, visits);
        interval_ = std::max(interval_ / 2, kFirstInterval);
        why = Return::kUnused;
        break;
      }
    }
    if (why == Return::kRecalled) {
      running_.lock();
      if (found_no_work_) why = Return::kNoWorkFound;
    }
    is_handed_off_.store(false, std::memory_order_relaxed);
    return why;
  }

  // ---- Any thread.

  bool is_handed_off() const { return is_handed_off_.load(std::memory_order_seq_cst); }
  // Async-signal-safe.
  void recall() { recalled_.set(); }
  bool is_recalled() const { return recalled_.is_set(); }
  // The calling thread has brought the loop work. Returns whether the loop is handed off, and the
  // owner may sleep on, since that thread is about to wait, or the one that last ran the loop may
  // still come back.
  bool leaves_work(Clock::time_point now, bool expects_wait) {
    if (!is_handed_off() || is_grace_suspended(now)) return false;
    if (expects_wait && !is_awaiting(now)) {
      awaited_until_.store(ticks(now + WaitHabit::kPrompt), std::memory_order_relaxed);
    }
    return expects_wait || ticks(now - kGrace) < given_back_.load(std::memory_order_relaxed);
  }

  // Asks for the loop while it exists.
  class Request {
   public:
    Request(LoopHandoff& handoff, Clock::time_point now) : requests_(handoff.requests_) {
      handoff.predictor_.note_return(now);
      requests_.fetch_add(1, std::memory_order_relaxed);
    }
    Request(const Request&) = delete;
    ~Request() { requests_.fetch_sub(1, std::memory_order_relaxed); }

   private:
    std::atomic<int>& requests_;
  };
  // Returns whether the calling thread now has the loop, which it then keeps until give_back().
  bool try_take() {
    if (!running_.try_lock()) return false;
    if (!is_open_) {
      running_.unlock();
      return false;
    }
    found_no_work_ = false;
    awaited_until_.store(0, std::memory_order_relaxed);
    visits_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  // Returns whether the thread that has the loop may leave it with work under way, and let the
  // owner sleep on.
  bool may_leave_work(Clock::time_point now) const {
    return predictor_.expects_return() && !is_grace_suspended(now);
  }
  enum class Recall { kNo, kYes, kYesNoWorkFound };
  void give_back(Recall how, Clock::time_point now) {
    given_back_.store(ticks(now), std::memory_order_relaxed);
    found_no_work_ = how == Recall::kYesNoWorkFound;
    running_.unlock();
    if (how != Recall::kNo) recall();
  }
  // give_back() with work under way.
  void leave(Recall how, Clock::time_point now) {
    predictor_.note_leave(now);
    give_back(how, now);
  }

 private:
  // Returns whether a thread that has brought work is about to wait for it.
  bool is_awaiting(Clock::time_point now) const {
    return ticks(now) < awaited_until_.load(std::memory_order_relaxed);
  }
  // The owner found work that nobody had come for.
  void suspend_grace(Clock::time_point now, uint32_t visits) {
    const bool is_again = visits - visits_when_suspended_ < kVisitsToTrust;
    no_grace_ = is_again ? std::min(2 * no_grace_, kMaxNoGrace) : kFirstNoGrace;
    visits_when_suspended_ = visits;
    no_grace_until_.store(ticks(now + no_grace_), std::memory_order_relaxed);
  }
  bool is_grace_suspended(Clock::time_point now) const {
    return ticks(now) < no_grace_until_.load(std::memory_order_relaxed);
  }
  static Clock::rep ticks(Clock::time_point time) { return time.time_since_epoch().count(); }

  std::mutex running_;  // held by the thread that runs the loop
  // Guarded by `running_`.
  bool is_open_ = false, found_no_work_ = false;
  std::atomic<uint32_t> visits_{0};
  ReturnPredictor predictor_;
  // The owner's.
  std::chrono::microseconds interval_ = kFirstInterval;
  std::chrono::milliseconds no_grace_ = kFirstNoGrace;
  uint32_t visits_when_suspended_ = 0;

  std::atomic<Clock::rep> given_back_{0}, no_grace_until_{0}, awaited_until_{0};
  std::atomic<bool> is_handed_off_{false};
  std::atomic<int> requests_{0};
  Event recalled_;
};

}  // namespace perseus
