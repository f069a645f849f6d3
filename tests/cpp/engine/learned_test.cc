// Ranks that have found different settings in earlier worlds, or none, begin a world together.
#include "engine/learned.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/engine_world.h"

namespace perseus {
namespace {

constexpr int kSize = 3, kClass = 2;

TunerFindings findings_of(int ranks, uint64_t shard_bytes) {
  Tuning tuning = Tuning::from(Settings());
  tuning.shard_bytes = shard_bytes;
  const WorldShape shape = {.hosts = 1, .ranks = ranks};
  return {.by_class = {{kClass, {tuning, shape}}},
          .habit = {.work_class = kClass, .look_batches = 20, .look_bytes = 1 << 20}};
}

TEST(Learned, AllRanksGoOnFromWhatTheLowestRankHasFoundThatHasFoundAnything) {
  const TunerFindings none, first = findings_of(kSize, 4 << 20), last = findings_of(kSize, 1 << 20);
  run_engine_world(kSize,
                   [&](EngineRank& rank) {
                     const Tuner& tuner = rank.parts().executor.tuner();
                     EXPECT_TRUE(tuner.is_finished());
                     EXPECT_EQ(tuner.current().shard_bytes, 4u << 20);
                     EXPECT_EQ(tuner.findings(), first);
                     // Large enough for several shards of either size, so ranks that disagree do
                     // not end well.
                     const OperationPtr sum = rank.submit("sum", 1.0f, 4 << 20);
                     EXPECT_TRUE(EngineRank::wait(sum).is_ok());
                     EXPECT_EQ(EngineRank::first(sum), kSize);
                   },
                   {none, first, last});
}

TEST(Learned, InAWorldOfAnotherSizeAllRanksTuneAgainFromThere) {
  run_engine_world(kSize,
                   [&](EngineRank& rank) {
                     const Tuner& tuner = rank.parts().executor.tuner();
                     EXPECT_FALSE(tuner.is_finished());
                     EXPECT_EQ(tuner.current().shard_bytes, 4u << 20);
                     const OperationPtr sum = rank.submit("sum", 1.0f, 4 << 20);
                     EXPECT_TRUE(EngineRank::wait(sum).is_ok());
                   },
                   {findings_of(4, 4 << 20), findings_of(4, 4 << 20), TunerFindings()});
}

TEST(Learned, WhatNoRankOfThisVersionHasFoundIsLeftOut) {
  TunerFindings odd = findings_of(kSize, 12345);
  run_engine_world(kSize,
                   [&](EngineRank& rank) {
                     EXPECT_EQ(rank.parts().executor.tuner().current(), Tuning::from(Settings()));
                     const OperationPtr sum = rank.submit("sum", 1.0f, 1 << 20);
                     EXPECT_TRUE(EngineRank::wait(sum).is_ok());
                   },
                   {odd, TunerFindings(), TunerFindings()});
}

}  // namespace
}  // namespace perseus
