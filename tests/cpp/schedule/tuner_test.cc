#include "schedule/tuner.h"

#include <gtest/gtest.h>

#include <functional>

namespace perseus {
namespace {

using std::chrono::nanoseconds;

constexpr Tuning kStart = {8, 1 << 20, 4 << 20};

// Runs the tuner to its end against a machine on which a MiB takes time_of(tuning) nanoseconds.
Tuning tune(const std::function<uint64_t(const Tuning&)>& time_of) {
  Tuner tuner(kStart, {});
  for (int burst = 0; burst < 10'000 && !tuner.is_finished(); ++burst) {
    tuner.record(1 << 20, nanoseconds(time_of(tuner.current())));
    if (const auto result = tuner.result()) tuner.conclude(*result);
  }
  EXPECT_TRUE(tuner.is_finished());
  return tuner.current();
}

TEST(Tuner, FindsTheFastestValueOfEachDimension) {
  const Tuning best = tune([](const Tuning& t) {
    return 1000 + (t.streams == 2 ? 0 : 500) + (t.shard_bytes == (4u << 20) ? 0 : 300) +
           (t.merge_bytes == (16u << 20) ? 0 : 200);
  });
  EXPECT_EQ(best, (Tuning{2, 4 << 20, 16 << 20}));
}

TEST(Tuner, KeepsTheStartWhereNothingIsClearlyFaster) {
  int burst = 0;
  EXPECT_EQ(tune([&](const Tuning&) { return 1000 + ++burst % 5; }), kStart);
}

TEST(Tuner, DisabledItKeepsTheStartAndAsksForNothing) {
  Tuner tuner({2, 123, 456}, {false, false, false});
  EXPECT_TRUE(tuner.is_finished());
  for (int i = 0; i < 100; ++i) tuner.record(1 << 20, nanoseconds(5));
  EXPECT_FALSE(tuner.result().has_value());
  EXPECT_EQ(tuner.current(), (Tuning{2, 123, 456}));
}

TEST(Tuner, SmallBurstsDoNotCount) {
  Tuner tuner(kStart, {});
  for (int i = 0; i < 100; ++i) tuner.record(1000, nanoseconds(5));
  EXPECT_FALSE(tuner.result().has_value());
}

TEST(Tuner, TheVerdictIsThatOfTheSlowestRank) {
  Tuner tuner({1, 1 << 20, 4 << 20}, {});
  tuner.conclude(1000);
  const Tuning fast_here = tuner.current();
  tuner.conclude(5000);  // another rank was slow with it
  while (!tuner.is_finished()) tuner.conclude(2000);
  EXPECT_NE(tuner.current(), fast_here);
  EXPECT_EQ(tuner.current(), (Tuning{1, 1 << 20, 4 << 20}));
}

TEST(Tuner, WhatTheUserHasChosenIsNeverChanged) {
  const TunedDimensions only_streams = {
      .shard_bytes = false, .streams = true, .merge_bytes = false};
  Tuner tuner({8, 123, 456}, only_streams);
  for (uint64_t time = 1000; !tuner.is_finished(); time -= 100) {
    EXPECT_EQ(tuner.current().shard_bytes, 123u);
    EXPECT_EQ(tuner.current().merge_bytes, 456u);
    tuner.conclude(time);
  }
  EXPECT_NE(tuner.current().streams, 8);
}

}  // namespace
}  // namespace perseus
