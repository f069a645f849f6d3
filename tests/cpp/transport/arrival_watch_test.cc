#include "transport/arrival_watch.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace perseus {
namespace {

using namespace std::chrono_literals;

constexpr auto kSilence = 160ms;

struct ArrivalWatchTest : testing::Test, ArrivalWatchHost {
  EventLoop loop;
  ArrivalWatch watch{loop, kSilence, *this};
  bool is_waiting = false;
  uint32_t awaited_in = 0;              // the turn in which what is awaited was posted
  std::set<int> answering = {0, 1, 2};  // channels
  std::set<int> closed, moving;
  mutable std::map<int, uint64_t> bytes;  // by channel
  int requests = 0;
  std::vector<int> held_back;

  ArrivalWatchTest() {
    for (const int channel : {0, 1, 2}) watch.add_channel(channel);
  }
  bool awaits_data_since(uint32_t turn) const override { return is_waiting && awaited_in < turn; }
  bool is_open(int channel) const override { return !closed.contains(channel); }
  uint64_t bytes_received(int channel) const override {
    return moving.contains(channel) ? ++bytes[channel] : bytes[channel];
  }
  void request_marks() override {
    ++requests;
    for (const int channel : answering) {
      loop.post([this, channel, number = watch.requested()] { watch.marked(channel, number); });
    }
  }
  void on_held_back(int channel, std::chrono::milliseconds silent_for) override {
    held_back.push_back(channel);
    EXPECT_GE(silent_for, kSilence);
  }

  void await() {
    is_waiting = true;
    awaited_in = watch.turn();
    watch.watch();
  }
  void run_for(Clock::duration time) {
    const auto end = Clock::now() + time;
    while (Clock::now() < end && held_back.empty()) loop.run_once(5ms);
  }
};

TEST_F(ArrivalWatchTest, AsksAgainAndAgainWhileDataIsAwaited) {
  await();
  run_for(2 * kSilence);
  EXPECT_GT(requests, 3);
  EXPECT_TRUE(held_back.empty());
}

TEST_F(ArrivalWatchTest, AsksNothingAboutDataThatComesSoon) {
  int soon = 0;
  for (int i = 0; i < 500 && soon < 20; ++i) {
    const int before = requests;
    const auto began = Clock::now();
    await();
    run_for(kSilence / 40);
    // On a busy machine a turn may take so long that data has not come soon.
    if (Clock::now() - began >= kSilence / 16) continue;
    EXPECT_EQ(requests, before);
    ++soon;
  }
  EXPECT_EQ(soon, 20);
  is_waiting = false;
  const int before = requests;
  run_for(kSilence);
  EXPECT_EQ(requests, before);
}

TEST_F(ArrivalWatchTest, ReportsAChannelOnWhichNothingCameThoughThePeerAnswers) {
  answering = {0, 2};
  const auto began = Clock::now();
  await();
  run_for(10s);
  EXPECT_EQ(held_back, std::vector<int>{1});
  EXPECT_GE(Clock::now() - began, kSilence);
}

TEST_F(ArrivalWatchTest, LeavesAPeerThatDoesNotAnswerToOthers) {
  answering = {};
  await();
  run_for(3 * kSilence);
  EXPECT_EQ(requests, 1);
  EXPECT_TRUE(held_back.empty());
}

TEST_F(ArrivalWatchTest, KeepsAChannelOnWhichAnythingComes) {
  answering = {0, 2};
  moving = {1};
  await();
  run_for(3 * kSilence);
  EXPECT_TRUE(held_back.empty());
  moving = {};
  run_for(10s);
  EXPECT_EQ(held_back, std::vector<int>{1});
}

TEST_F(ArrivalWatchTest, AwaitsNothingOnAChannelWhereThePeerHasSaidGoodbye) {
  answering = {0, 2};
  closed = {1};
  await();
  run_for(3 * kSilence);
  EXPECT_TRUE(held_back.empty());
}

}  // namespace
}  // namespace perseus
