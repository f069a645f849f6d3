// What a tuner has found, and what the tuner of the next world makes of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "base/settings.h"
#include "schedule/tuner.h"

namespace perseus {
namespace {

using std::chrono::nanoseconds;

constexpr WorldShape kFour = {.hosts = 1, .ranks = 4}, kThree = {.hosts = 1, .ranks = 3};
constexpr WorldShape kTwoHosts = {.hosts = 2, .ranks = 4};
constexpr Tuning kInitial = {.streams = 4,
                             .shard_bytes = 1 << 20,
                             .merge_bytes = 1 << 20,
                             .credit_bytes = 16 << 20,
                             .chunk_bytes = 128 << 10};
constexpr uint64_t kStepBytes = 8 << 20;  // of a step, which is one operation
constexpr int kClass = 2;                 // that it is of
const TuningEffort kEffort = TuningEffort::from(Settings());
constexpr int kMostSteps = 60;

using TimeOf = std::function<uint64_t(const Tuning&)>;  // nanoseconds per MiB

Tuner tuner_in(const WorldShape& shape) {
  return {kInitial, Candidates::inside_a_host(kInitial), kEffort, shape};
}

void do_step(Tuner& tuner, const TimeOf& time_of, uint64_t bytes = kStepBytes) {
  tuner.note_batch(bytes, bytes);
  tuner.record(bytes, nanoseconds((bytes >> 20) * time_of(tuner.current())));
  tuner.end_step();
  if (const auto result = tuner.result()) tuner.conclude(*result);
}

// Returns the number of steps.
int tune_up(Tuner& tuner, const TimeOf& time_of, uint64_t bytes = kStepBytes) {
  int steps = 0;
  for (; !tuner.is_finished() && steps < 10 * kMostSteps; ++steps) do_step(tuner, time_of, bytes);
  EXPECT_TRUE(tuner.is_finished());
  return steps;
}

uint64_t likes_large_shards(const Tuning& t) {
  return t.shard_bytes > kInitial.shard_bytes ? 500 : 1000;
}
uint64_t likes_few_streams(const Tuning& t) { return 500 * static_cast<uint64_t>(t.streams); }
uint64_t likes_the_start(const Tuning& t) { return t == kInitial ? 500 : 1000; }

TunerFindings found_with_four(const TimeOf& time_of = likes_large_shards) {
  Tuner tuner = tuner_in(kFour);
  tune_up(tuner, time_of);
  EXPECT_NE(tuner.current(), kInitial);
  return tuner.findings();
}

TEST(TunerFindings, AreTakenOverAtOnceInAWorldOfTheSameShape) {
  const TunerFindings found = found_with_four();
  Tuner next = tuner_in(kFour);
  EXPECT_TRUE(next.take_over(found));
  EXPECT_TRUE(next.is_finished());
  EXPECT_EQ(next.current(), found.by_class.at(kClass).tuning);
  EXPECT_EQ(next.steps(), 0);
  for (int i = 0; i < 200; ++i) {
    do_step(next, likes_the_start);
    EXPECT_TRUE(next.is_finished());
  }
  EXPECT_EQ(next.findings(), found);
}

TEST(TunerFindings, TheNextTunerNoticesOtherWorkToo) {
  Tuner next = tuner_in(kFour);
  next.take_over(found_with_four());
  for (int i = 0; i < 20 && next.is_finished(); ++i) do_step(next, likes_few_streams, 64 << 20);
  EXPECT_FALSE(next.is_finished());
  EXPECT_EQ(next.current(), kInitial);
  tune_up(next, likes_few_streams, 64 << 20);
  EXPECT_EQ(next.current().streams, 1);
  EXPECT_EQ(next.findings().by_class.size(), 2u);
}

TEST(TunerFindings, AreWhereTheSearchBeginsInAWorldOfAnotherShape) {
  const TunerFindings found = found_with_four();
  Tuner next = tuner_in(kThree);
  EXPECT_TRUE(next.take_over(found));
  EXPECT_FALSE(next.is_finished());
  EXPECT_EQ(next.current(), found.by_class.at(kClass).tuning);
  const auto likes_both = [](const Tuning& t) {
    return likes_large_shards(t) * likes_few_streams(t);
  };
  EXPECT_LE(tune_up(next, likes_both), kMostSteps);
  EXPECT_GT(next.current().shard_bytes, kInitial.shard_bytes);
  EXPECT_EQ(next.current().streams, 1);
  EXPECT_EQ(next.findings().by_class.at(kClass).shape, kThree);
}

TEST(TunerFindings, AreGivenUpWhereTheInitialValuesAreFaster) {
  Tuner next = tuner_in(kThree);
  next.take_over(found_with_four());
  EXPECT_LE(tune_up(next, likes_the_start), kMostSteps);
  EXPECT_EQ(next.current(), kInitial);
}

TEST(TunerFindings, OutliveAWorldThatEndsWhileItTunes) {
  const TunerFindings found = found_with_four();
  Tuner second = tuner_in(kThree);
  second.take_over(found);
  for (int i = 0; i < kMostSteps / 4; ++i) do_step(second, likes_few_streams);
  ASSERT_FALSE(second.is_finished());
  EXPECT_EQ(second.findings(), found);
  Tuner third = tuner_in(kFour);
  EXPECT_TRUE(third.take_over(second.findings()));
  EXPECT_TRUE(third.is_finished());
}

TEST(TunerFindings, OfOneHostSayNothingAboutSeveral) {
  Tuner next = {kInitial, Candidates::between_hosts(kInitial, 8), kEffort, kTwoHosts};
  EXPECT_FALSE(next.take_over(found_with_four()));
  EXPECT_FALSE(next.is_finished());
  EXPECT_EQ(next.current(), kInitial);
  EXPECT_TRUE(next.findings().by_class.empty());
}

TEST(TunerFindings, DoNotChangeWhatTheUserHasSetMeanwhile) {
  Candidates candidates = Candidates::inside_a_host(kInitial);
  candidates.shard_bytes.clear();
  Tuner next(kInitial, candidates, kEffort, kFour);
  EXPECT_FALSE(next.take_over(found_with_four(likes_large_shards)));
  EXPECT_EQ(next.current(), kInitial);
  Tuner off(kInitial, {}, kEffort, kFour);
  EXPECT_FALSE(off.take_over(found_with_four()));
  EXPECT_EQ(off.current(), kInitial);
}

TEST(TunerFindings, AreTheSameAfterTheWayToAnotherRank) {
  const TunerFindings found = found_with_four();
  EXPECT_EQ(TunerFindings::unpack(found.pack()), found);
  EXPECT_EQ(TunerFindings().pack(), "");
  EXPECT_EQ(TunerFindings::unpack(""), TunerFindings());
  const std::string packed = found.pack();
  for (size_t length = 0; length < packed.size(); ++length) {
    EXPECT_EQ(TunerFindings::unpack(packed.substr(0, length)), TunerFindings()) << length;
  }
}

}  // namespace
}  // namespace perseus
