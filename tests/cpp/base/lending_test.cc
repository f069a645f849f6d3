// A loop that is run by a thread which waits, in place of its own.
#include "base/lending.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "base/event_loop.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

bool rounds_up() {
  volatile float one = 1, little = 1e-10f;
  return one + little > 1;
}

// Stands for an engine: threads leave events in it that its next poll sets, and ring only if asked
// to.
class Events : public Poller, public LoopLender {
 public:
  explicit Events(std::chrono::microseconds spin = 10s) : loop(spin) {
    loop.add_poller(this);
    loop.lend_by(*this);
    own_ = std::thread([this] { loop.run(); });
    own_id = own_.get_id();
  }
  ~Events() { finish(); }
  void finish() {
    if (!own_.joinable()) return;
    loop.stop();
    own_.join();
  }

  // The thread that polls next is the event's.
  struct Left {
    Event event;
    std::thread::id set_by;
    bool rounded_up = false;
  };
  void leave(Left& left) {
    {
      std::lock_guard lock(mutex_);
      left_.push_back(&left);
    }
    has_left_ = true;
    if (wants_bell_.exchange(false)) loop.wake();
  }
  void help_until(Event& event, Clock::duration time_out = 20s) {
    loop.help(event, Clock::now() + time_out);
  }
  // Until the event is set, whoever sets it.
  void wait(Event& event) {
    help_until(event);
    ASSERT_TRUE(event.wait(20s));
  }
  // Most often it is lent then: who asks for it gives up where others compute on its processor.
  void give_time_to_be_lent() const {
    const auto deadline = Clock::now() + 10ms;
    while (!loop.is_lent() && Clock::now() < deadline) std::this_thread::yield();
  }

  bool poll() override {
    if (!has_left_.exchange(false)) {
      if (work == 0) return false;
      worked_last = std::this_thread::get_id();
      --work;
      return true;
    }
    std::vector<Left*> taken;
    {
      std::lock_guard lock(mutex_);
      taken.swap(left_);
    }
    taken_ += taken.size();
    for (Left* left : taken) {
      left->set_by = std::this_thread::get_id();
      left->rounded_up = rounds_up();
      left->event.set();
    }
    return true;
  }
  bool prepare_to_sleep() override {
    wants_bell_ = true;
    return !has_left_;
  }
  void awake() override { wants_bell_ = false; }
  bool may_lend() const override { return may_be_lent; }
  bool has_news() const override { return has_left_; }
  bool is_at_rest() const override { return !has_left_ && work == 0; }
  bool has_bulk_work() const override { return work > kMuch; }

  EventLoop loop;
  std::thread::id own_id;
  std::atomic<bool> may_be_lent{true};
  static constexpr int kMuch = 1000000;
  std::atomic<int> work{0};                  // polls that are under way
  std::atomic<std::thread::id> worked_last;  // who polled
  size_t taken() const { return taken_; }    // after finish()

 private:
  std::thread own_;
  std::mutex mutex_;
  std::vector<Left*> left_;
  std::atomic<bool> has_left_{false}, wants_bell_{false};
  size_t taken_ = 0;  // of who runs the loop; no lock
};

TEST(LendingTest, WhoWaitsRunsTheLoopWhenItsOwnThreadHasNothingToDo) {
  Events events;
  int by_helper = 0;
  for (int i = 0; i < 100; ++i) {
    Events::Left left;
    std::thread helper([&] { events.wait(left.event); });
    const auto id = helper.get_id();
    events.give_time_to_be_lent();
    events.leave(left);
    helper.join();
    by_helper += left.set_by == id;
  }
  EXPECT_GT(by_helper, 0);
}

TEST(LendingTest, ItsOwnThreadTakesItBackWhenNobodyRunsIt) {
  Events events;
  Events::Left first, second;
  events.leave(first);
  events.wait(first.event);
  events.leave(second);  // nobody is rung
  ASSERT_TRUE(second.event.wait(20s));
  EXPECT_EQ(second.set_by, events.own_id);
}

TEST(LendingTest, WorkGoesOnWhenWhoHasRunItLeavesAndDoesNotComeBack) {
  for (const int waits : {1, 2, 20}) {  // the last is expected back
    Events events;
    for (int i = 0; i < waits; ++i) {
      events.work = Events::kMuch;
      Events::Left left;
      std::thread leaver([&] {
        events.give_time_to_be_lent();
        events.leave(left);
      });
      events.wait(left.event);
      leaver.join();
    }
    events.work = 1000;
    const auto deadline = Clock::now() + 20s;
    while (events.work > 0 && Clock::now() < deadline) std::this_thread::yield();
    EXPECT_EQ(events.work, 0);
    EXPECT_EQ(events.worked_last.load(), events.own_id);
  }
}

TEST(LendingTest, ItsOwnThreadDoesWhatIsMuch) {
  Events events;
  Event never;
  std::thread helper([&] { events.help_until(never, 200ms); });
  events.give_time_to_be_lent();
  events.work = 2 * Events::kMuch;
  events.loop.wake();
  const auto deadline = Clock::now() + 20s;
  while (events.work > 0 && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(events.work, 0);
  EXPECT_EQ(events.worked_last.load(), events.own_id);
  helper.join();
}

TEST(ComingBackTest, WhoMostlyComesBackAtOnceIsExpectedTo) {
  ComingBack coming_back;
  Clock::time_point now = Clock::now();
  const auto is_expected_after = [&](Clock::duration away) {
    coming_back.leaves(now);
    EXPECT_TRUE(coming_back.is_away());
    now += away;
    coming_back.comes(now);
    EXPECT_FALSE(coming_back.is_away());
    return coming_back.is_expected();
  };
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(is_expected_after(19us));
  EXPECT_TRUE(is_expected_after(19us));
  coming_back.comes(now + 1s);  // nobody has left
  EXPECT_TRUE(coming_back.is_expected());
  EXPECT_FALSE(is_expected_after(20us));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(is_expected_after(1us));
  for (int i = 0; i < 100; ++i) is_expected_after(1us);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(is_expected_after(1s));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(is_expected_after(1s));
}

TEST(LendingTest, WhatIsBoundToItsOwnThreadIsNotLent) {
  Events events;
  events.may_be_lent = false;
  for (int i = 0; i < 100; ++i) {
    Events::Left left;
    events.leave(left);
    events.wait(left.event);
    EXPECT_EQ(left.set_by, events.own_id);
  }
}

TEST(LendingTest, WhoRunsItLeavesWhenItIsNeededByItsOwnThread) {
  Events events;
  Event never;
  std::thread helper([&] { events.help_until(never); });
  events.give_time_to_be_lent();
  const auto began = Clock::now();
  events.may_be_lent = false;
  helper.join();
  EXPECT_LT(Clock::now() - began, 10s);
}

TEST(LendingTest, WhatIsPostedRunsThoughTheLoopIsLent) {
  Events events;
  Event never;
  std::thread helper([&] { events.help_until(never, 200ms); });
  events.give_time_to_be_lent();
  for (int i = 0; i < 1000; ++i) {
    Event ran;
    events.loop.post([&] { ran.set(); });
    ASSERT_TRUE(ran.wait(20s)) << "post " << i;
  }
  helper.join();
}

TEST(LendingTest, ATimeOutEndsTheHelp) {
  Events events;
  Event never;
  const auto began = Clock::now();
  events.help_until(never, 20ms);
  EXPECT_LT(Clock::now() - began, 10s);
}

TEST(LendingTest, WhoFindsNothingToDoForLongGivesItBack) {
  Events events(1ms);
  Event never;
  const auto began = Clock::now();
  events.help_until(never);
  EXPECT_LT(Clock::now() - began, 10s);
}

TEST(LendingTest, StoppingEndsTheHelp) {
  Events events;
  Event never;
  std::thread helper([&] { events.help_until(never); });
  events.give_time_to_be_lent();
  events.finish();
  const auto began = Clock::now();
  events.may_be_lent = false;  // or it would ask for long
  helper.join();
  EXPECT_LT(Clock::now() - began, 10s);
}

TEST(LendingTest, ManyThreadsWaitAndNothingIsLostOrDoneTwice) {
  for (const auto spin : {0us, 20us, 1000us}) {
    constexpr int kThreads = 4, kRounds = 2000;
    Events events(spin);
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kRounds; ++i) {
          Events::Left left;
          events.leave(left);
          if (t == 0) {
            events.loop.wake();
          } else {
            events.loop.wake_unless_helped(Clock::now());
          }
          events.wait(left.event);
        }
      });
    }
    for (auto& thread : threads) thread.join();
    events.finish();
    EXPECT_EQ(events.taken(), size_t{kThreads * kRounds});
  }
}

TEST(LendingTest, TheWaitingThreadsWayOfRoundingIsLeftOutsideAndGivenBack) {
  Events events;
  int by_helper = 0;
  for (int i = 0; i < 100; ++i) {
    Events::Left left;
    std::thread helper([&] {
      std::fesetround(FE_UPWARD);
      EXPECT_TRUE(rounds_up());
      events.wait(left.event);
      EXPECT_TRUE(rounds_up());
    });
    const auto id = helper.get_id();
    events.give_time_to_be_lent();
    events.leave(left);
    helper.join();
    by_helper += left.set_by == id;
    EXPECT_FALSE(left.rounded_up);
  }
  EXPECT_GT(by_helper, 0);
}

}  // namespace
}  // namespace perseus
