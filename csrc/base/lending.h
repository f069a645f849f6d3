// Which thread runs an event loop: its own or, while that has nothing to do, one that waits for
// what the loop brings about and finds it without any change of threads (leader and followers,
// Schmidt 2000). A small operation takes less time than to put a thread to sleep and wake it.
//
// The loop's own thread lends it to who asks, and sleeps beside. It takes the loop back when it is
// recalled, or when it has looked twice and nobody had run it in between: for so long, some
// hundred microseconds, may things wait that come meanwhile and recall nobody.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>

#include "base/event.h"

namespace perseus {

class Lending {
 public:
  // Between two looks; the latter after many, as each costs who runs the loop some microseconds.
  static constexpr std::chrono::microseconds kPatience{100}, kMostPatience{500};
  // In which who has run it may come back; and for how long nobody is given it after one did not.
  static constexpr std::chrono::microseconds kGrace{50};
  static constexpr std::chrono::milliseconds kMistrust{100};
  using Clock = std::chrono::steady_clock;

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
        patience = has_news() ? kGrace : std::min(2 * patience, kMostPatience);
      } else if (running_.try_lock()) {  // else who has it sees to all there is
        if (has_news()) no_grace_until_.store(ticks(Clock::now() + kMistrust));
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
           ticks(now) >= no_grace_until_.load(std::memory_order_relaxed);
  }

  // Asks for the loop, while it lives.
  class Wish {
   public:
    explicit Wish(Lending& lending) : wanting_(lending.wanting_) {
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
  enum class GiveBack { kLater, kNow, kNowInVain };
  void give_back(GiveBack how, Clock::time_point now) {
    given_back_.store(ticks(now), std::memory_order_relaxed);
    in_vain_ = how == GiveBack::kNowInVain;
    running_.unlock();
    if (how != GiveBack::kLater) recall();
  }

 private:
  static Clock::rep ticks(Clock::time_point time) { return time.time_since_epoch().count(); }

  std::mutex running_;                      // who holds it runs the loop
  bool is_open_ = false, in_vain_ = false;  // of who runs it
  std::atomic<uint32_t> visits_{0};
  std::atomic<Clock::rep> given_back_{0}, no_grace_until_{0};
  std::atomic<bool> is_lent_{false};
  std::atomic<int> wanting_{0};
  Event recalled_;
};

}  // namespace perseus
