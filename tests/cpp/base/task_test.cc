#include "base/task.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/event_loop.h"

namespace perseus {
namespace {

using namespace std::chrono_literals;

struct NextTurn {
  EventLoop& loop;
  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> handle) { loop.schedule(handle); }
  void await_resume() const noexcept {}
};

struct Outcome final : TaskObserver {
  int finished = 0;
  Status status;
  void task_finished(const Status& s) override {
    ++finished;
    status = s;
  }
};

Task leaf(EventLoop& loop, int turns, Status result, std::vector<std::string>& log,
          std::string name) {
  for (int i = 0; i < turns; ++i) {
    NextTurn next{loop};
    co_await next;
  }
  log.push_back(name);
  co_return result;
}

TEST(TaskTest, DoesNothingUntilStartedAndReportsItsStatusOnce) {
  EventLoop loop;
  std::vector<std::string> log;
  Outcome outcome;
  Task task = leaf(loop, 1, Status::aborted("why"), log, "leaf");
  loop.run_once(0ms);
  EXPECT_TRUE(log.empty());
  std::move(task).start(&outcome);
  EXPECT_EQ(outcome.finished, 0);
  loop.run_once(0ms);
  EXPECT_EQ(outcome.finished, 1);
  EXPECT_EQ(outcome.status.code(), StatusCode::kAborted);
  EXPECT_EQ(outcome.status.message(), "why");
}

Task parent(EventLoop& loop, std::vector<std::string>& log) {
  Task first = leaf(loop, 2, Status::ok(), log, "first");
  PERSEUS_CO_RETURN_IF_ERROR(co_await std::move(first));
  log.push_back("between");
  Task second = leaf(loop, 0, Status::timed_out("late"), log, "second");
  PERSEUS_CO_RETURN_IF_ERROR(co_await std::move(second));
  log.push_back("never");
  co_return Status::ok();
}

TEST(TaskTest, AwaitedTasksRunInTurnAndTheFirstErrorEndsTheParent) {
  EventLoop loop;
  std::vector<std::string> log;
  Outcome outcome;
  parent(loop, log).start(&outcome);
  while (outcome.finished == 0) loop.run_once(0ms);
  EXPECT_EQ(log, (std::vector<std::string>{"first", "between", "second"}));
  EXPECT_EQ(outcome.status.code(), StatusCode::kTimedOut);
}

Task fan_out(EventLoop& loop, std::vector<std::string>& log) {
  std::vector<Task> tasks;
  tasks.push_back(leaf(loop, 3, Status::aborted("slow"), log, "slow"));
  tasks.push_back(leaf(loop, 1, Status::internal("quick"), log, "quick"));
  tasks.push_back(leaf(loop, 0, Status::ok(), log, "at once"));
  AllTasks all(tasks);
  co_return co_await all;
}

TEST(TaskTest, AllTasksRunsThemSideBySideAndEndsWithTheFirstErrorInTime) {
  EventLoop loop;
  std::vector<std::string> log;
  Outcome outcome;
  fan_out(loop, log).start(&outcome);
  EXPECT_EQ(outcome.finished, 0);
  while (outcome.finished == 0) loop.run_once(0ms);
  EXPECT_EQ(log, (std::vector<std::string>{"at once", "quick", "slow"}));
  EXPECT_EQ(outcome.status.message(), "quick");
}

Task fan_out_ready(EventLoop& loop, std::vector<std::string>& log, size_t count) {
  std::vector<Task> tasks;
  for (size_t i = 0; i < count; ++i) tasks.push_back(leaf(loop, 0, Status::ok(), log, "t"));
  AllTasks all(tasks);
  co_return co_await all;
}

TEST(TaskTest, AllTasksOfNoneOrOfFinishedOnesEndsAtOnce) {
  EventLoop loop;
  std::vector<std::string> log;
  Outcome none, some;
  fan_out_ready(loop, log, 0).start(&none);
  fan_out_ready(loop, log, 3).start(&some);
  EXPECT_EQ(none.finished, 1);
  EXPECT_EQ(some.finished, 1);
  EXPECT_TRUE(some.status.is_ok());
  EXPECT_EQ(log.size(), 3u);
}

Task throws(EventLoop& loop) {
  NextTurn next{loop};
  co_await next;
  throw std::bad_alloc();
  co_return Status::ok();
}

TEST(TaskTest, RunningOutOfMemoryBecomesAStatus) {
  EventLoop loop;
  Outcome outcome;
  throws(loop).start(&outcome);
  loop.run_once(0ms);
  EXPECT_EQ(outcome.finished, 1);
  EXPECT_EQ(outcome.status.code(), StatusCode::kOutOfMemory);
}

TEST(TaskTest, FramesAreUsedAgain) {
  FramePool pool;
  void* first = pool.take(700);
  pool.give_back(first, 700);
  void* second = pool.take(1000);  // the same size class
  EXPECT_EQ(first, second);
  pool.give_back(second, 1000);
}

}  // namespace
}  // namespace perseus
