#include "watch/peer_watch.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <vector>

namespace perseus {
namespace {

using namespace std::chrono_literals;

struct PeerWatchTest : testing::Test, PeerWatchHost {
  EventLoop loop;
  std::set<int> awaited;
  std::set<int> answering;
  int questions = 0;
  std::vector<int> silent;
  std::chrono::milliseconds told{0};
  PeerWatch watch{loop, 160ms, *this};

  std::set<int> awaited_peers() const override { return awaited; }
  void ping(int rank) override {
    ++questions;
    if (answering.contains(rank)) loop.post([this, rank] { watch.heard(rank); });
  }
  void on_silent_peer(int rank, std::chrono::milliseconds silent_for) override {
    silent.push_back(rank);
    told = silent_for;
    awaited.clear();
  }

  void run_for(Clock::duration time) {
    const auto end = Clock::now() + time;
    while (Clock::now() < end && silent.empty()) loop.run_once(5ms);
  }
};

TEST_F(PeerWatchTest, GivesUpAPeerThatSaysNothing) {
  awaited = {1, 2};
  answering = {1};
  const auto began = Clock::now();
  watch.watch();
  run_for(10s);
  EXPECT_EQ(silent, std::vector<int>{2});
  EXPECT_GE(told, 160ms);
  EXPECT_GE(Clock::now() - began, told);
}

TEST_F(PeerWatchTest, KeepsPeersThatAnswer) {
  awaited = answering = {1, 2};
  watch.watch();
  run_for(600ms);
  EXPECT_TRUE(silent.empty());
  EXPECT_GT(questions, 2);
}

TEST_F(PeerWatchTest, AsksNothingWhileNothingIsAwaited) {
  watch.watch();
  run_for(100ms);
  const int before = questions;
  run_for(100ms);
  EXPECT_EQ(questions, before);
  EXPECT_EQ(questions, 0);
}

}  // namespace
}  // namespace perseus
