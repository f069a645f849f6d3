// Calls of a name take turns, whoever is ready first; leaving waits for those that are not done.
#include "mxnet/turns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "mxnet/backlog.h"

namespace perseus::mxnet {
namespace {

TEST(Turns, CallsBeginInTheirOrderWhicheverIsReadyFirst) {
  Turns turns;
  const Turns::Ticket first = turns.take(7), second = turns.take(7), other = turns.take(8);
  std::vector<int> begun;
  turns.begin(second, [&] { begun.push_back(2); });
  turns.begin(other, [&] { begun.push_back(3); });
  EXPECT_EQ(begun, std::vector<int>({3}));
  turns.begin(first, [&] { begun.push_back(1); });
  EXPECT_EQ(begun, std::vector<int>({3, 1}));
  turns.end(first);
  EXPECT_EQ(begun, std::vector<int>({3, 1, 2}));
}

TEST(Turns, ManyThatEndAsTheyBeginNeedNoStack) {
  Turns turns;
  constexpr int kCalls = 200'000;
  std::vector<Turns::Ticket> tickets;
  for (int i = 0; i < kCalls; ++i) tickets.push_back(turns.take(1));
  int begun = 0;
  for (int i = kCalls - 1; i >= 0; --i) {
    turns.begin(tickets[i], [&, i] {
      EXPECT_EQ(begun++, i);
      turns.end(tickets[i]);
    });
  }
  EXPECT_EQ(begun, kCalls);
}

// As MXNet's threads make calls ready and Perseus's end them.
TEST(Turns, ThreadsThatBeginAndEndKeepEachNamesOrder) {
  Turns turns;
  constexpr int kNames = 3, kCalls = 300;
  std::vector<std::pair<int, int>> calls;  // name, number in it
  std::vector<std::vector<Turns::Ticket>> tickets(kNames);
  for (int name = 0; name < kNames; ++name) {
    for (int i = 0; i < kCalls; ++i) {
      tickets[name].push_back(turns.take(name));
      calls.emplace_back(name, i);
    }
  }
  std::shuffle(calls.begin(), calls.end(), std::mt19937(1));
  std::vector<std::atomic<int>> begun(kNames);
  std::vector<std::atomic<int>> under_way(kNames);
  std::atomic<bool> is_right{true};
  std::mutex mutex;
  std::vector<std::pair<int, int>> to_end;
  std::atomic<int> ended{0};
  const auto ender = [&] {
    while (ended < kNames * kCalls) {
      std::pair<int, int> call{-1, 0};
      {
        const std::lock_guard lock(mutex);
        if (!to_end.empty()) {
          call = to_end.back();
          to_end.pop_back();
        }
      }
      if (call.first < 0) {
        std::this_thread::yield();
        continue;
      }
      --under_way[call.first];
      ++ended;
      turns.end(tickets[call.first][call.second]);
    }
  };
  std::atomic<size_t> next{0};
  const auto beginner = [&] {
    for (size_t i = next++; i < calls.size(); i = next++) {
      const auto [name, number] = calls[i];
      turns.begin(tickets[name][number], [&, name = name, number = number] {
        if (begun[name]++ != number || under_way[name]++ != 0) is_right = false;
        const std::lock_guard lock(mutex);
        to_end.emplace_back(name, number);
      });
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back(beginner);
    threads.emplace_back(ender);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(is_right);
  for (const auto& of_name : begun) EXPECT_EQ(of_name, kCalls);
}

TEST(Backlog, SettlesWhenItIsEmpty) {
  Backlog backlog;
  backlog.settle(std::chrono::hours(1));
  backlog.add();
  std::thread other([&] { backlog.remove(); });
  backlog.settle(std::chrono::hours(1));
  other.join();
}

TEST(Backlog, IsGivenUpWhenNothingOfItEnds) {
  Backlog backlog;
  backlog.add();
  backlog.settle(std::chrono::milliseconds(1));
}

}  // namespace
}  // namespace perseus::mxnet
