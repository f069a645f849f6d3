#include "schedule/launch_order.h"

#include <gtest/gtest.h>

#include <random>

namespace perseus {
namespace {

constexpr int kLanes = 2;

Launch launch(int32_t urgency, uint64_t size = 1) {
  Launch made;
  made.urgency = urgency;
  made.size = size;
  return made;
}

// The turns of launches without halves.
std::vector<Launch*> settle(LaunchOrder& order, uint64_t ended) {
  std::vector<Launch*> settled;
  for (const LaunchTurn& turn : order.settle(ended)) settled.push_back(turn.launch);
  return settled;
}

TEST(LaunchOrder, TakesTheUrgentFirstAndEqualsInTheirOrder) {
  LaunchOrder order(100, kLanes);
  Launch launches[4] = {launch(0), launch(5), launch(0), launch(5)};
  for (Launch& each : launches) order.add(&each);
  const std::vector<Launch*> expected = {&launches[1], &launches[3], &launches[0], &launches[2]};
  EXPECT_EQ(settle(order, 0), expected);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(expected[i]->number, i);
  EXPECT_FALSE(order.has_waiting());
}

TEST(LaunchOrder, BoundsWhatIsUnderWayUntilAllRanksSayThatItHasEnded) {
  LaunchOrder order(10, kLanes);
  Launch launches[3] = {launch(0, 6), launch(0, 6), launch(0, 6)};
  for (Launch& each : launches) order.add(&each);
  EXPECT_EQ(settle(order, 0), std::vector<Launch*>{&launches[0]});
  order.end(launches[0]);
  EXPECT_EQ(order.ended_here(), 1u);
  EXPECT_TRUE(settle(order, 0).empty());  // it may be under way elsewhere
  EXPECT_EQ(settle(order, 1), std::vector<Launch*>{&launches[1]});
  EXPECT_EQ(settle(order, 2), std::vector<Launch*>{&launches[2]});
}

TEST(LaunchOrder, WhatIsLargerThanTheCreditGoesAlone) {
  LaunchOrder order(10, kLanes);
  Launch launches[2] = {launch(0, 50), launch(0, 50)};
  for (Launch& each : launches) order.add(&each);
  EXPECT_EQ(settle(order, 0), std::vector<Launch*>{&launches[0]});
  EXPECT_EQ(settle(order, 1), std::vector<Launch*>{&launches[1]});
}

TEST(LaunchOrder, TheUrgentOvertakesWhatWaits) {
  LaunchOrder order(1, kLanes);
  Launch bulk[2] = {launch(0), launch(0)};
  for (Launch& each : bulk) order.add(&each);
  EXPECT_EQ(settle(order, 0), std::vector<Launch*>{&bulk[0]});
  Launch urgent = launch(9);
  order.add(&urgent);
  EXPECT_EQ(settle(order, 1), std::vector<Launch*>{&urgent});
  EXPECT_EQ(settle(order, 2), std::vector<Launch*>{&bulk[1]});
}

TEST(LaunchOrder, CountsWhatHasEndedHereWithoutAGap) {
  LaunchOrder order(100, kLanes);
  Launch launches[3] = {launch(0), launch(0), launch(0)};
  for (Launch& each : launches) order.add(&each);
  settle(order, 0);
  order.end(launches[1]);
  EXPECT_EQ(order.ended_here(), 0u);
  order.end(launches[0]);
  EXPECT_EQ(order.ended_here(), 2u);
  order.end(launches[2]);
  EXPECT_EQ(order.ended_here(), 3u);
}

TEST(LaunchOrder, GivesBackWhatHasNotBeenSettled) {
  LaunchOrder order(1, kLanes);
  Launch launches[3] = {launch(0), launch(0), launch(0)};
  for (Launch& each : launches) order.add(&each);
  settle(order, 0);
  EXPECT_EQ(order.cancel().size(), 2u);
  EXPECT_FALSE(order.has_waiting());
}

TEST(LaunchOrder, LowerHalvesFollowTheUpperOnesOfTheOtherLanes) {
  Launch launches[4] = {launch(0), launch(0), launch(0), launch(0)};
  for (Launch& each : launches) each.has_halves = true;
  auto& [a, b, c, d] = launches;
  const auto turns_with = [&](int lanes) {
    LaunchOrder order(100, lanes);
    for (Launch& each : launches) order.add(&each);
    const auto settled = order.settle(0);
    return std::vector<LaunchTurn>(settled.begin(), settled.end());
  };
  using Turns = std::vector<LaunchTurn>;
  EXPECT_EQ(turns_with(1),
            (Turns{{&a}, {&a, true}, {&b}, {&b, true}, {&c}, {&c, true}, {&d}, {&d, true}}));
  EXPECT_EQ(turns_with(2),
            (Turns{{&a}, {&b}, {&a, true}, {&c}, {&b, true}, {&d}, {&c, true}, {&d, true}}));
  EXPECT_EQ(turns_with(16),
            (Turns{{&a}, {&b}, {&c}, {&d}, {&a, true}, {&b, true}, {&c, true}, {&d, true}}));
}

// A launch without halves may come between two halves, but not on their lane.
TEST(LaunchOrder, ALaneHasNothingHalfDoneWhenItIsGivenAnother) {
  Launch launches[3] = {launch(0), launch(0), launch(0)};
  auto& [a, b, c] = launches;
  a.has_halves = true;
  LaunchOrder order(100, 2);
  for (Launch& each : launches) order.add(&each);
  const auto settled = order.settle(0);
  EXPECT_EQ(std::vector<LaunchTurn>(settled.begin(), settled.end()),
            (std::vector<LaunchTurn>{{&a}, {&b}, {&a, true}, {&c}}));
}

// Ranks whose launches end at different moments, and in different orders, settle the same order.
TEST(LaunchOrder, IsTheSameOnRanksThatAgreeOnTheSame) {
  std::mt19937 random(7);
  for (int round = 0; round < 50; ++round) {
    constexpr int kRanks = 3, kLaunches = 60;
    std::vector<std::vector<Launch>> of_rank(kRanks);
    for (int i = 0; i < kLaunches; ++i) {
      const Launch made = launch(static_cast<int32_t>(random() % 4), 1 + random() % 8);
      for (auto& launches : of_rank) {
        launches.push_back(made);
        launches.back().has_halves = i % 3 != 0;
      }
    }
    std::vector<LaunchOrder> orders(kRanks, LaunchOrder(16, kLanes));
    std::vector<std::vector<Launch*>> running(kRanks);
    std::vector<std::vector<size_t>> order_of(kRanks);
    int added = 0;
    for (int steps = 0; order_of[0].size() < kLaunches + kLaunches * 2 / 3; ++steps) {
      ASSERT_LT(steps, 10'000);
      const int more = std::min<int>(static_cast<int>(random() % 5), kLaunches - added);
      uint64_t ended = UINT64_MAX;
      for (const LaunchOrder& order : orders) ended = std::min(ended, order.ended_here());
      for (int r = 0; r < kRanks; ++r) {
        for (int i = 0; i < more; ++i) orders[r].add(&of_rank[r][added + i]);
        for (const LaunchTurn& turn : orders[r].settle(ended)) {
          const auto which = static_cast<size_t>(turn.launch - of_rank[r].data());
          order_of[r].push_back(2 * which + (turn.is_lower ? 1 : 0));
          if (turn.is_last()) running[r].push_back(turn.launch);
        }
        while (!running[r].empty() && random() % 3 != 0) {
          const size_t which = random() % running[r].size();
          orders[r].end(*running[r][which]);
          running[r].erase(running[r].begin() + static_cast<std::ptrdiff_t>(which));
        }
      }
      added += more;
    }
    for (int r = 1; r < kRanks; ++r) EXPECT_EQ(order_of[r], order_of[0]);
  }
}

}  // namespace
}  // namespace perseus
