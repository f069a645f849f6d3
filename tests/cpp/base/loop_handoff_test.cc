// A loop that a waiting thread runs in place of the loop's own.
#include "base/loop_handoff.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cfenv>
#include <chrono>
#include <functional>
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

// Stands for an engine: threads leave events in it that its next poll sets, and wake the loop only
// if it has asked for that.
class Events : public Poller, public LoopHandoffPolicy {
 public:
  explicit Events(std::chrono::microseconds spin = 10s) : loop(spin) {
    loop.add_poller(this);
    loop.set_handoff_policy(*this);
    own_ = std::thread([this] { loop.run(); });
    own_id = own_.get_id();
  }
  ~Events() { finish(); }
  void finish() {
    if (!own_.joinable()) return;
    loop.stop();
    own_.join();
  }

  // An event that the next poll sets, and how it did so.
  struct Left {
    Event event;
    std::thread::id set_by;
    bool rounded_up = false;
  };
  void leave(Left& left) {
    add(left);
    if (wants_bell_.exchange(false)) loop.wake();
  }
  // Does the same as a thread that may be about to wait.
  void submit(Left& left) {
    add(left);
    wants_bell_ = false;
    loop.wake_unless_helped(Clock::now());
  }
  void help_until(Event& event, Clock::duration time_out = 20s) {
    const Clock::time_point now = Clock::now();
    loop.help(event, now, now + time_out);
  }
  // Waits until the event is set, whichever thread sets it.
  void wait(Event& event) {
    help_until(event);
    ASSERT_TRUE(event.wait(20s));
  }
  // Asks for the loop again and again until the event is set: a thread gives up where others
  // compute on its processor, and a loop that sleeps sees nobody ask.
  void wait_asking(Event& event) {
    const auto deadline = Clock::now() + 20s;
    while (!event.is_set() && Clock::now() < deadline) {
      loop.wake();
      help_until(event);
    }
    ASSERT_TRUE(event.is_set());
  }
  // Mostly the loop has been handed off when this returns. Not always: a thread that asks for it
  // gives up where others compute on its processor.
  void give_time_for_hand_off(Clock::duration time_out = 10ms) const {
    const auto deadline = Clock::now() + time_out;
    while (!loop.is_handed_off() && Clock::now() < deadline) std::this_thread::yield();
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
  bool may_hand_off() const override { return may_be_handed_off; }
  bool has_pending_work() const override { return has_left_; }
  bool is_idle() const override { return !has_left_ && work == 0; }
  bool has_bulk_work() const override { return work > kBulkWork; }

  EventLoop loop;
  std::thread::id own_id;
  std::atomic<bool> may_be_handed_off{true};
  static constexpr int kBulkWork = 1000000;
  std::atomic<int> work{0};                  // how many polls find work
  std::atomic<std::thread::id> worked_last;  // the thread that polled
  size_t taken() const { return taken_; }    // after finish()

 private:
  void add(Left& left) {
    {
      std::lock_guard lock(mutex_);
      left_.push_back(&left);
    }
    has_left_ = true;
  }

  std::thread own_;
  std::mutex mutex_;
  std::vector<Left*> left_;
  std::atomic<bool> has_left_{false}, wants_bell_{false};
  size_t taken_ = 0;  // used by the thread that runs the loop alone, so without a lock
};

// Has threads wait for one event each, until ten of them have run the loop and set theirs, or until
// it takes too long. Each waits by `wait`; `seen` gets each event. Returns how many set theirs.
int wait_until_helped(Events& events, const std::function<void(Event&)>& wait,
                      const std::function<void(const Events::Left&)>& seen) {
  const auto deadline = Clock::now() + 30s;
  int by_helper = 0;
  while (by_helper < 10 && Clock::now() < deadline) {
    Events::Left left;
    std::thread helper([&] { wait(left.event); });
    const auto id = helper.get_id();
    events.give_time_for_hand_off(1s);
    events.leave(left);
    helper.join();
    by_helper += left.set_by == id;
    seen(left);
  }
  return by_helper;
}

TEST(LoopHandoffTest, AWaitingThreadRunsTheLoopWhenItsOwnHasNothingToDo) {
  Events events;
  const auto wait = [&](Event& event) { events.wait_asking(event); };
  EXPECT_GT(wait_until_helped(events, wait, [](const Events::Left&) {}), 0);
}

TEST(LoopHandoffTest, ItsOwnThreadTakesItBackWhenNobodyRunsIt) {
  Events events;
  Events::Left first, second;
  events.leave(first);
  events.wait(first.event);
  events.leave(second);  // wakes nobody
  ASSERT_TRUE(second.event.wait(20s));
  EXPECT_EQ(second.set_by, events.own_id);
}

TEST(LoopHandoffTest, ItsOwnThreadDoesWorkThatIsExpectedToBeWaitedForButIsNot) {
  Events events;
  for (int i = 0; i < 50; ++i) {
    Events::Left waited_for;
    events.submit(waited_for);
    events.wait(waited_for.event);
  }
  for (int i = 0; i < 50; ++i) {
    Events::Left left;
    events.submit(left);
    const auto deadline = Clock::now() + 20s;
    while (!left.event.is_set() && Clock::now() < deadline) std::this_thread::yield();
    ASSERT_TRUE(left.event.is_set()) << i;
    EXPECT_EQ(left.set_by, events.own_id);
  }
}

TEST(LoopHandoffTest, WorkGoesOnWhenAHelperLeavesAndDoesNotComeBack) {
  for (const int waits : {1, 2, 20}) {  // after 20 the helper is expected back
    Events events;
    for (int i = 0; i < waits; ++i) {
      events.work = Events::kBulkWork;
      Events::Left left;
      std::thread leaver([&] {
        events.give_time_for_hand_off();
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

TEST(LoopHandoffTest, ItsOwnThreadDoesBulkWork) {
  Events events;
  Event never;
  std::thread helper([&] { events.help_until(never, 200ms); });
  events.give_time_for_hand_off();
  events.work = 2 * Events::kBulkWork;
  events.loop.wake();
  const auto deadline = Clock::now() + 20s;
  while (events.work > 0 && Clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(events.work, 0);
  EXPECT_EQ(events.worked_last.load(), events.own_id);
  helper.join();
}

TEST(ReturnPredictorTest, AThreadThatMostlyReturnsAtOnceIsExpectedTo) {
  ReturnPredictor predictor;
  Clock::time_point now = Clock::now();
  const auto is_expected_after = [&](Clock::duration away) {
    predictor.note_leave(now);
    EXPECT_TRUE(predictor.is_away());
    now += away;
    predictor.note_return(now);
    EXPECT_FALSE(predictor.is_away());
    return predictor.expects_return();
  };
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(is_expected_after(ReturnPredictor::kPrompt - 1us));
  EXPECT_TRUE(is_expected_after(ReturnPredictor::kPrompt - 1us));
  predictor.note_return(now + 1s);  // nobody has left
  EXPECT_TRUE(predictor.expects_return());
  EXPECT_FALSE(is_expected_after(ReturnPredictor::kPrompt));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(is_expected_after(1us));
  for (int i = 0; i < 100; ++i) is_expected_after(1us);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(is_expected_after(1s));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(is_expected_after(1s));
}

TEST(WaitHabitTest, AThreadThatMostlyWaitsForItsWorkIsExpectedTo) {
  WaitHabit habit;
  Clock::time_point now = Clock::now();
  const auto is_expected_after = [&](Clock::duration before_wait) {
    habit.note_work(now);
    now += before_wait;
    habit.note_wait(now);
    return habit.expects_wait();
  };
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(is_expected_after(WaitHabit::kPrompt - 1us));
  EXPECT_TRUE(is_expected_after(WaitHabit::kPrompt - 1us));
  habit.note_wait(now + 1s);  // for work of another thread
  EXPECT_TRUE(habit.expects_wait());
  EXPECT_FALSE(is_expected_after(WaitHabit::kPrompt));
  for (int i = 0; i < 100; ++i) is_expected_after(1us);
  // Several are waited for together, but not those of a whole backward pass.
  habit.note_work(now);
  habit.note_work(now += WaitHabit::kPrompt - 1us);
  EXPECT_TRUE(habit.expects_wait());
  for (int i = 0; i < 10; ++i) habit.note_work(now += WaitHabit::kPrompt / 2);
  EXPECT_FALSE(habit.expects_wait());
}

TEST(LoopHandoffTest, WorkBoundToItsOwnThreadIsNotHandedOff) {
  Events events;
  events.may_be_handed_off = false;
  for (int i = 0; i < 100; ++i) {
    Events::Left left;
    events.leave(left);
    events.wait(left.event);
    EXPECT_EQ(left.set_by, events.own_id);
  }
}

TEST(LoopHandoffTest, AHelperLeavesWhenItsOwnThreadNeedsTheLoop) {
  Events events;
  Event never;
  std::thread helper([&] { events.help_until(never); });
  events.give_time_for_hand_off();
  const auto began = Clock::now();
  events.may_be_handed_off = false;
  helper.join();
  EXPECT_LT(Clock::now() - began, 10s);
}

// A thread that visits a loop that has been handed off does what is there to do. Without a visit,
// the loop goes back to its own thread within milliseconds.
TEST(LoopHandoffTest, AVisitRunsATurnOfALoopThatIsHandedOff) {
  Events events;
  const auto deadline = Clock::now() + 30s;
  int by_visitor = 0;
  while (by_visitor < 10 && Clock::now() < deadline) {
    Events::Left first, second;
    events.leave(first);
    events.wait_asking(first.event);
    for (int visit = 0; visit < 100; ++visit) events.loop.visit();
    events.leave(second);
    events.loop.visit();
    ASSERT_TRUE(second.event.wait(20s));
    by_visitor += second.set_by == std::this_thread::get_id();
  }
  EXPECT_EQ(by_visitor, 10);
}

TEST(LoopHandoffTest, AVisitLeavesALoopAloneThatIsNotHandedOff) {
  Events events;
  events.may_be_handed_off = false;
  for (int visit = 0; visit < 100; ++visit) {
    Events::Left left;
    events.leave(left);
    events.loop.visit();
    ASSERT_TRUE(left.event.wait(20s));
    ASSERT_EQ(left.set_by, events.own_id);
  }
}

TEST(LoopHandoffTest, PostedFunctionsRunThoughTheLoopIsHandedOff) {
  Events events;
  Event never;
  std::thread helper([&] { events.help_until(never, 200ms); });
  events.give_time_for_hand_off();
  for (int i = 0; i < 1000; ++i) {
    Event ran;
    events.loop.post([&] { ran.set(); });
    ASSERT_TRUE(ran.wait(20s)) << "post " << i;
  }
  helper.join();
}

TEST(LoopHandoffTest, ATimeOutEndsTheHelp) {
  Events events;
  Event never;
  const auto began = Clock::now();
  events.help_until(never, 20ms);
  EXPECT_LT(Clock::now() - began, 10s);
}

TEST(LoopHandoffTest, AHelperThatFindsNothingToDoForLongGivesItBack) {
  Events events(1ms);
  Event never;
  const auto began = Clock::now();
  events.help_until(never);
  EXPECT_LT(Clock::now() - began, 10s);
}

TEST(LoopHandoffTest, StoppingEndsTheHelp) {
  Events events;
  Event never;
  std::thread helper([&] { events.help_until(never); });
  events.give_time_for_hand_off();
  events.finish();
  const auto began = Clock::now();
  events.may_be_handed_off = false;  // else it would keep asking
  helper.join();
  EXPECT_LT(Clock::now() - began, 10s);
}

TEST(LoopHandoffTest, ManyThreadsWaitAndNothingIsLostOrDoneTwice) {
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

TEST(LoopHandoffTest, TheWaitingThreadsRoundingModeIsSetAsideAndRestored) {
  Events events;
  const auto wait = [&](Event& event) {
    std::fesetround(FE_UPWARD);
    EXPECT_TRUE(rounds_up());
    events.wait_asking(event);
    EXPECT_TRUE(rounds_up());
  };
  const auto seen = [](const Events::Left& left) { EXPECT_FALSE(left.rounded_up); };
  EXPECT_GT(wait_until_helped(events, wait, seen), 0);
}

}  // namespace
}  // namespace perseus
