#include "base/event_loop.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "base/file_descriptor.h"
#include "base/task.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

struct NextTurn {
  EventLoop& loop;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) { loop.schedule(handle); }
  void await_resume() const noexcept {}
};

Task count_turns(EventLoop& loop, int turns, std::vector<int>& order, int name) {
  for (int i = 0; i < turns; ++i) {
    NextTurn next{loop};
    co_await next;
    order.push_back(name);
  }
  co_return Status::ok();
}

TEST(EventLoopTest, ResumesCoroutinesInOrderOfSchedulingAndNeverInline) {
  EventLoop loop;
  std::vector<int> order;
  count_turns(loop, 2, order, 1).start(nullptr);
  count_turns(loop, 2, order, 2).start(nullptr);
  EXPECT_TRUE(order.empty());
  loop.run_once(0ms);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  loop.run_once(0ms);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 1, 2}));
}

TEST(EventLoopTest, RunsPostedFunctionsOfEveryThreadInTheirOrder) {
  EventLoop loop;
  constexpr int kThreads = 4, kPosts = 5000;
  std::vector<std::vector<int>> seen(kThreads);
  int total = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kPosts; ++i) {
        loop.post([&, t, i] {
          seen[t].push_back(i);
          if (++total == kThreads * kPosts) loop.stop();
        });
      }
    });
  }
  loop.run();
  for (auto& thread : threads) thread.join();
  for (const auto& numbers : seen) {
    ASSERT_EQ(numbers.size(), static_cast<size_t>(kPosts));
    EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
  }
}

TEST(EventLoopTest, APostWakesASleepingLoop) {
  EventLoop loop(0us);
  std::thread runner([&] { loop.run(); });
  for (int i = 0; i < 2000; ++i) {
    std::promise<void> ran;
    loop.post([&] { ran.set_value(); });
    ASSERT_EQ(ran.get_future().wait_for(20s), std::future_status::ready) << "post " << i;
  }
  loop.stop();
  runner.join();
}

TEST(EventLoopTest, StopBeforeRunEndsTheRunAtOnce) {
  EventLoop loop;
  loop.stop();
  loop.run();
  std::thread stopper([&] { loop.stop(); });
  loop.run();
  stopper.join();
}

TEST(EventLoopTest, SleepingUsesNoProcessorTime) {
  EventLoop loop;
  loop.call_at(Clock::now() + 200ms, [&] { loop.stop(); });
  rusage before, after;
  getrusage(RUSAGE_THREAD, &before);
  loop.run();
  getrusage(RUSAGE_THREAD, &after);
  const auto microseconds = [](const rusage& use) {
    return (use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1000000 + use.ru_utime.tv_usec +
           use.ru_stime.tv_usec;
  };
  EXPECT_LT(microseconds(after) - microseconds(before), 20000);
}

TEST(EventLoopTest, TimersFireInOrderOfTimeAndNotBefore) {
  EventLoop loop;
  std::vector<int> order;
  const auto start = Clock::now();
  loop.call_at(start + 20ms, [&] {
    EXPECT_GE(Clock::now(), start + 20ms);
    order.push_back(2);
    loop.stop();
  });
  loop.call_at(start + 10ms, [&] { order.push_back(1); });
  const auto cancelled = loop.call_at(start + 5ms, [&] { order.push_back(0); });
  loop.cancel_timer(cancelled);
  loop.run();
  loop.cancel_timer(cancelled);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
}

struct Recorder : FdHandler {
  std::function<void(uint32_t)> act;
  int calls = 0;
  void on_ready(uint32_t events) override {
    ++calls;
    if (act) act(events);
  }
};

TEST(EventLoopTest, TellsOfReadableDescriptorsUntilUnwatchedFromWithinTheCall) {
  EventLoop loop;
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
  Recorder recorder;
  recorder.act = [&](uint32_t events) {
    EXPECT_TRUE(events & EPOLLIN);
    if (recorder.calls == 2) loop.unwatch(fds[0]);
  };
  loop.watch(fds[0], EPOLLIN, &recorder);
  ASSERT_EQ(write(fds[1], "x", 1), 1);
  while (recorder.calls < 2) loop.run_once(1000ms);
  loop.run_once(0ms);
  EXPECT_EQ(recorder.calls, 2);
  close(fds[0]);
  close(fds[1]);
}

TEST(EventLoopTest, AnEventOfADescriptorUnwatchedInTheSameTurnIsNotDelivered) {
  EventLoop loop;
  const int a = eventfd(1, EFD_NONBLOCK), b = eventfd(1, EFD_NONBLOCK);
  Recorder first, second;
  first.act = [&](uint32_t) {
    loop.unwatch(a);
    loop.unwatch(b);
  };
  second.act = first.act;
  loop.watch(a, EPOLLIN, &first);
  loop.watch(b, EPOLLIN, &second);
  loop.run_once(1000ms);
  loop.run_once(0ms);
  EXPECT_EQ(first.calls + second.calls, 1);
  close(a);
  close(b);
}

// Stands for a ring in shared memory: another thread leaves work, and wakes the loop only if it has
// asked for that.
struct Mailbox : Poller {
  EventLoop& loop;
  std::atomic<int> left{0};
  std::atomic<bool> wants_bell{false};
  int taken = 0, goal = 0;

  explicit Mailbox(EventLoop& l) : loop(l) {}
  void leave_one() {
    left.fetch_add(1, std::memory_order_seq_cst);
    if (wants_bell.exchange(false, std::memory_order_seq_cst)) loop.wake();
  }
  bool poll() override {
    const int count = left.exchange(0);
    taken += count;
    if (taken == goal) loop.stop();
    return count > 0;
  }
  bool prepare_to_sleep() override {
    wants_bell.store(true, std::memory_order_seq_cst);
    return left.load(std::memory_order_seq_cst) == 0;
  }
  void awake() override { wants_bell.store(false, std::memory_order_relaxed); }
};

TEST(EventLoopTest, NoWorkOfAPollerIsLostBetweenPollingAndSleeping) {
  EventLoop loop(0us);  // sleeps whenever it can
  Mailbox mailbox(loop);
  mailbox.goal = 20000;
  loop.add_poller(&mailbox);
  std::thread neighbour([&] {
    for (int i = 0; i < mailbox.goal; ++i) mailbox.leave_one();
  });
  loop.run();
  neighbour.join();
  EXPECT_EQ(mailbox.taken, mailbox.goal);
  loop.remove_poller(&mailbox);
}

struct OneShotPoller : Poller {
  EventLoop& loop;
  int calls = 0;
  explicit OneShotPoller(EventLoop& l) : loop(l) {}
  bool poll() override {
    ++calls;
    loop.remove_poller(this);
    return true;
  }
  bool prepare_to_sleep() override { return true; }
  void awake() override {}
};

TEST(EventLoopTest, APollerMayRemoveItselfWhilePolling) {
  EventLoop loop;
  OneShotPoller first(loop), second(loop);
  loop.add_poller(&first);
  loop.add_poller(&second);
  loop.run_once(0ms);
  loop.run_once(0ms);
  EXPECT_EQ(first.calls, 1);
  EXPECT_EQ(second.calls, 1);
}

// A process that leaves a message in shared memory and ends, right after one of this loop's looks.
class LastMessage : public Poller, public FdHandler {
 public:
  explicit LastMessage(int polls_before) : polls_before_(polls_before) {}

  bool poll() override {
    if (has_left_) has_taken = true;
    if (++polls_ != polls_before_) return true;  // so that the loop does not sleep
    has_left_ = true;
    const uint64_t one = 1;
    EXPECT_EQ(write(socket.get(), &one, sizeof one), ssize_t{sizeof one});
    return true;
  }
  bool prepare_to_sleep() override { return true; }
  void awake() override {}
  void on_ready(uint32_t) override {
    has_ended = true;
    EXPECT_TRUE(has_taken) << "after " << polls_before_ << " polls";
  }

  const FileDescriptor socket{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  bool has_taken = false, has_ended = false;

 private:
  const int polls_before_;
  int polls_ = 0;
  bool has_left_ = false;
};

TEST(EventLoopTest, ThePollersRunBetweenTheEndOfASocketAndItsHandling) {
  for (int polls = 1; polls <= 20; ++polls) {
    EventLoop loop;
    LastMessage last(polls);
    loop.add_poller(&last);
    loop.watch(last.socket.get(), EPOLLIN, &last);
    for (int turn = 0; turn < 100 && !last.has_ended; ++turn) loop.run_once(0ms);
    EXPECT_TRUE(last.has_ended);
    loop.unwatch(last.socket.get());
    loop.remove_poller(&last);
  }
}

}  // namespace
}  // namespace perseus
