// Which thread runs an event loop: its own or, while that has nothing to do, one that waits for
// what the loop brings about and finds it without any change of threads (leader and followers,
// Schmidt 2000). A small operation takes less time than to put a thread to sleep and wake it.
//
// The loop's own thread lends it to who asks, and sleeps beside. It takes the loop back when it is
// recalled, or when it has looked twice and nobody had run it in between: for so long may things
// wait that come meanwhile and recall nobody. It looks after 0.1 ms, and ever less often as long as
// it finds that the loop is run, since each look costs who runs it some 10 us.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/event.h"

namespace perseus {

// Whether who leaves the loop in the midst of its work comes back at once: a program that waits for
// many operations one by one does, one that computes after each wait does not. Any thread.
class ComingBack {
 public:
  using Clock = std::chrono::steady_clock;
  // Longer than to see that some dozens are done already; not much, as nobody works meanwhile.
  static constexpr std::chrono::microseconds kAtOnce{20};
  // Each time it did is a point, up to so many; each time it did not costs some; with so many it is
  // expected to. Threads are interrupted at times, which is no habit.
  static constexpr int kMost = 16, kCost = 4, kEnough = 4;

  void leaves(Clock::time_point now) {
    left_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  }
  void comes(Clock::time_point now) {
    if (!is_away()) return;
    const Clock::time_point left{Clock::duration(left_.exchange(0, std::memory_order_relaxed))};
    const int points = points_.load(std::memory_order_relaxed);
    const bool is_at_once = now - left < kAtOnce;
    points_.store(is_at_once ? std::min(points + 1, kMost) : std::max(points - kCost, 0),
                  std::memory_order_relaxed);
  }
  bool is_away() const { return left_.load(std::memory_order_relaxed) != 0; }
  bool is_expected() const { return points_.load(std::memory_order_relaxed) >= kEnough; }

 private:
  std::atomic<Clock::rep> left_{0};  // 0: nobody has
  std::atomic<int> points_{0};
};

class Lending {
 public:
  using Clock = std::chrono::steady_clock;
  // In which who has run it to the end of its work may come back with more.
  static constexpr std::chrono::microseconds kGrace{50};
  // Between two looks.
  static constexpr std::chrono::microseconds kPatience{100}, kMostPatience{1000};
  // For so long nobody is expected back after one did not come.
  static constexpr std::chrono::milliseconds kMistrust{100};

  // ---- The loop's own thread, which has the loop from open() to close() but while it lends it.

  void open() {
    running_.lock();
    is_open_ = true;
  }
  void close() {
    is_open_ = false;
    running_.unlock();
  }
  bool is_wanted() const { return wanting_.load(std::memory_order_relaxed) > 0; }
  // From here on a recall ends the next lend().
  void forget_recalls() { recalled_.take(); }
  enum class Return {
    kRecalled,  // there is something to do
    kInVain,    // who had it found nothing to do for long
    kUnused,    // nobody has had it for long
  };
  // `has_news` says, on any thread, whether something waits that somebody is expected to see to.
  template <typename HasNews>
  Return lend(HasNews has_news) {
    is_lent_.store(true, std::memory_order_seq_cst);
    running_.unlock();
    Return why = Return::kRecalled;
    auto patience = kPatience;
    uint32_t seen = visits_.load(std::memory_order_relaxed);
    while (!recalled_.wait(patience)) {
      const uint32_t visits = visits_.load(std::memory_order_relaxed);
      if (std::exchange(seen, visits) != visits) {
        const bool is_waited_for = has_news() || coming_back_.is_away();
        patience = is_waited_for ? kGrace : std::min(2 * patience, kMostPatience);
      } else if (running_.try_lock()) {  // else who has it sees to all there is
        if (has_news() || coming_back_.is_away()) {
          no_grace_until_.store(ticks(Clock::now() + kMistrust));
        }
        why = Return::kUnused;
        break;
      }
    }
    if (why == Return::kRecalled) {
      running_.lock();
      if (in_vain_) why = Return::kInVain;
    }
    is_lent_.store(false, std::memory_order_relaxed);
    return why;
  }

  // ---- Any thread.

  bool is_lent() const { return is_lent_.load(std::memory_order_seq_cst); }
  // Async-signal-safe.
  void recall() { recalled_.set(); }
  bool is_recalled() const { return recalled_.is_set(); }
  // Whether it is lent, and who has run it may yet come back.
  bool is_in_grace(Clock::time_point now) const {
    return is_lent() && ticks(now - kGrace) < given_back_.load(std::memory_order_relaxed) &&
           !is_mistrusted(now);
  }

  // Asks for the loop, while it lives.
  class Wish {
   public:
    Wish(Lending& lending, Clock::time_point now) : wanting_(lending.wanting_) {
      lending.coming_back_.comes(now);
      wanting_.fetch_add(1, std::memory_order_relaxed);
    }
    Wish(const Wish&) = delete;
    ~Wish() { wanting_.fetch_sub(1, std::memory_order_relaxed); }

   private:
    std::atomic<int>& wanting_;
  };
  // Whether the calling thread has the loop now, until give_back().
  bool try_take() {
    if (!running_.try_lock()) return false;
    if (!is_open_) {
      running_.unlock();
      return false;
    }
    in_vain_ = false;
    visits_.fetch_add(1, std::memory_order_relaxed);
    return true;
  }
  // Whether who has it may leave, with work under way, and the loop's own thread sleep on.
  bool may_leave(Clock::time_point now) const {
    return coming_back_.is_expected() && !is_mistrusted(now);
  }
  enum class GiveBack { kLater, kNow, kNowInVain };
  void give_back(GiveBack how, Clock::time_point now) {
    given_back_.store(ticks(now), std::memory_order_relaxed);
    in_vain_ = how == GiveBack::kNowInVain;
    running_.unlock();
    if (how != GiveBack::kLater) recall();
  }
  // The same, of what is in the midst of its work.
  void leave(GiveBack how, Clock::time_point now) {
    coming_back_.leaves(now);
    give_back(how, now);
  }

 private:
  bool is_mistrusted(Clock::time_point now) const {
    return ticks(now) < no_grace_until_.load(std::memory_order_relaxed);
  }
  static Clock::rep ticks(Clock::time_point time) { return time.time_since_epoch().count(); }

  std::mutex running_;                      // who holds it runs the loop
  bool is_open_ = false, in_vain_ = false;  // of who runs it
  std::atomic<uint32_t> visits_{0};
  ComingBack coming_back_;
  std::atomic<Clock::rep> given_back_{0}, no_grace_until_{0};
  std::atomic<bool> is_lent_{false};
  std::atomic<int> wanting_{0};
  Event recalled_;
};

}  // namespace perseus
