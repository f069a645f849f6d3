#include "schedule/tuner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <random>
#include <vector>

#include "base/settings.h"

namespace perseus {
namespace {

using std::chrono::nanoseconds;

constexpr Tuning kStart = {.streams = 8,
                           .shard_bytes = 1 << 20,
                           .merge_bytes = 1 << 19,
                           .credit_bytes = 16 << 20,
                           .chunk_bytes = 128 << 10};
const Tuning kDefaults = Tuning::from(Settings());
const TuningEffort kDefaultEffort = TuningEffort::from(Settings());
// Candidates of every dimension.
const Candidates kAll = {.shard_bytes = {1 << 18, 1 << 19, 1 << 20, 4 << 20},
                         .streams = {1, 2, 4, 8},
                         .merge_bytes = {1 << 20, 4 << 20, 16 << 20},
                         .credit_bytes = {4 << 20, 16 << 20, 64 << 20},
                         .chunk_bytes = {32 << 10, 128 << 10}};
// No step is skipped, and a trial can be concluded without steps.
constexpr TuningEffort kQuick = {.steps = 3, .warm_up = 0, .most_values = 1000};

// Records a training step in two bursts.
void record_step(Tuner& tuner, uint64_t nanoseconds_a_mib) {
  tuner.record(1 << 20, nanoseconds(nanoseconds_a_mib));
  tuner.record(3 << 20, nanoseconds(3 * nanoseconds_a_mib));
  tuner.end_step();
}

struct Tuned {
  Tuning best;
  int steps = 0;
};

// Runs the tuner to its end against a machine on which a MiB takes time_of(tuning) nanoseconds.
Tuned tune(const std::function<uint64_t(const Tuning&)>& time_of,
           TuningEffort effort = kDefaultEffort) {
  Tuner tuner(kStart, kAll, effort);
  Tuned tuned;
  for (; tuned.steps < 10'000 && !tuner.is_finished(); ++tuned.steps) {
    record_step(tuner, time_of(tuner.current()));
    if (const auto result = tuner.result()) tuner.conclude(*result);
  }
  EXPECT_TRUE(tuner.is_finished());
  tuned.best = tuner.current();
  return tuned;
}

// How many nanoseconds per MiB `tuning` takes longer than `fastest`.
uint64_t distance(const Tuning& tuning, const Tuning& fastest) {
  const auto of = [](uint64_t a, uint64_t b) {
    return 100 * static_cast<uint64_t>(std::countr_zero(std::max(a, b) / std::min(a, b)));
  };
  return of(static_cast<uint64_t>(tuning.streams), static_cast<uint64_t>(fastest.streams)) +
         of(tuning.shard_bytes, fastest.shard_bytes) + of(tuning.merge_bytes, fastest.merge_bytes) +
         of(tuning.credit_bytes, fastest.credit_bytes) +
         of(tuning.chunk_bytes, fastest.chunk_bytes);
}

TEST(Tuner, FindsTheFastestValueOfEachDimension) {
  const Tuning fastest = {.streams = 2,
                          .shard_bytes = 4 << 20,
                          .merge_bytes = 1 << 20,
                          .credit_bytes = 64 << 20,
                          .chunk_bytes = 32 << 10};
  TuningEffort effort = kDefaultEffort;
  effort.most_values = 100;
  const Tuned tuned = tune([&](const Tuning& t) { return 1000 + distance(t, fastest); }, effort);
  EXPECT_EQ(tuned.best, fastest);
}

TEST(Tuner, KeepsTheStartWhereNothingIsClearlyFaster) {
  int step = 0;
  EXPECT_EQ(tune([&](const Tuning&) { return 1000 + ++step % 5; }).best, kStart);
}

// One in five steps is disturbed, and now and then many in a row.
class NoisyMachine {
 public:
  explicit NoisyMachine(unsigned seed) : random_(seed) {}

  uint64_t disturbed(uint64_t time) {
    if (left_-- == 0) {
      left_ = std::uniform_int_distribution(4, 15)(random_);
      load_ = part() < 0.6 ? 1 : 1 + part();
    }
    const double jitter = 1 + 0.2 * part();
    const double hit = part() < 0.2 ? 1 + 2 * part() : 1;
    return static_cast<uint64_t>(static_cast<double>(time) * load_ * jitter * hit);
  }

 private:
  double part() { return std::uniform_real_distribution(0.0, 1.0)(random_); }
  std::mt19937 random_;
  int left_ = 0;
  double load_ = 1;
};

TEST(Tuner, WhatItKeepsIsHardlyEverSlowerThanTheStartHoweverNoisyTheMachine) {
  constexpr unsigned kJobs = 300;
  unsigned slower = 0;
  for (unsigned seed = 0; seed < kJobs; ++seed) {
    NoisyMachine machine(seed);
    const Tuned tuned = tune([&](const Tuning& t) {
      return machine.disturbed(2'000 + distance(t, kStart));  // nothing is better than the start
    });
    slower += tuned.best != kStart;
  }
  EXPECT_LE(slower, kJobs / 50);
}

TEST(Tuner, FindsWhatIsMuchFasterOnANoisyMachineToo) {
  constexpr unsigned kJobs = 300;
  unsigned found = 0;
  for (unsigned seed = 0; seed < kJobs; ++seed) {
    NoisyMachine machine(seed);
    const Tuned tuned = tune([&](const Tuning& t) {
      return machine.disturbed(t.shard_bytes > kStart.shard_bytes ? 5'000 : 10'000);
    });
    found += tuned.best.shard_bytes > kStart.shard_bytes;
  }
  EXPECT_GE(found, kJobs * 9 / 10);
}

TEST(Tuner, GoesBackToTheStartIfTheSearchWasMisled) {
  Tuner tuner(kStart, kAll, kQuick);
  int trial = 0;
  while (!tuner.is_finished()) tuner.conclude(trial++ == 2 ? 500 : 1000);
  EXPECT_EQ(tuner.current(), kStart);
}

TEST(Tuner, TakesNoMoreThanSixtySteps) {
  const auto between_hosts = Candidates::between_hosts(kDefaults, 8);
  const auto in_a_host = Candidates::inside_a_host(kDefaults);
  for (const Candidates& candidates : {between_hosts, in_a_host}) {
    for (uint64_t factor : {99, 100, 101}) {  // faster and faster, constant, slower and slower
      Tuner tuner(kDefaults, candidates, kDefaultEffort);
      for (uint64_t time = 1'000'000; !tuner.is_finished();) {
        time = time * factor / 100;
        record_step(tuner, time);
        if (const auto result = tuner.result()) tuner.conclude(*result);
      }
      EXPECT_LE(tuner.steps(), 60);
    }
  }
}

TEST(Tuner, TriesNoMoreThanTheMostValues) {
  Tuner tuner(kStart, kAll, {.steps = 1, .warm_up = 0, .most_values = 3});
  std::vector<Tuning> tried;
  for (uint64_t time = 1000; !tuner.is_finished(); time -= 20) {
    if (std::ranges::find(tried, tuner.current()) == tried.end()) tried.push_back(tuner.current());
    tuner.conclude(time);
  }
  EXPECT_EQ(tried.size(), 3u);  // the start among them
}

TEST(Tuner, TheFirstTenStepsHaveTheInitialValues) {
  Tuner tuner(kDefaults, Candidates::inside_a_host(kDefaults), kDefaultEffort);
  for (int step = 0; step < 10; ++step) {
    EXPECT_EQ(tuner.current(), kDefaults);
    record_step(tuner, 1000);
    if (const auto result = tuner.result()) tuner.conclude(*result);
  }
}

TEST(Tuner, GivesUpAValueAfterOneStepThatIsFarSlower) {
  Tuner tuner(kStart, kAll, kQuick);
  tuner.conclude(1000);
  record_step(tuner, 9000);  // belongs partly to the trial before
  EXPECT_FALSE(tuner.result().has_value());
  record_step(tuner, 1501);
  EXPECT_EQ(tuner.result(), 1501u);
  tuner.conclude(1501);
  record_step(tuner, 9000);
  record_step(tuner, 1499);
  EXPECT_FALSE(tuner.result().has_value());
}

// Agrees on a batch of equal tensors and moves it, as a training step.
void move_tensors(Tuner& tuner, uint64_t bytes, int tensors, uint64_t nanoseconds_a_mib) {
  for (int i = 0; i < tensors; ++i) {
    tuner.note_batch(bytes, bytes);
    tuner.record(bytes, nanoseconds((bytes * nanoseconds_a_mib) >> 20));
  }
  tuner.end_step();
  if (const auto result = tuner.result()) tuner.conclude(*result);
}

TEST(Tuner, TunesAgainWhenTheWorkChangesAndRemembersWhatItHasFound) {
  Tuner tuner(kStart, kAll, kDefaultEffort);
  constexpr uint64_t kLarge = 64 << 20, kSmall = 1 << 20;
  // Large tensors want large shards, and small ones small shards.
  const auto move_one = [&](uint64_t bytes) {
    const bool fits = bytes == kLarge ? tuner.current().shard_bytes > kStart.shard_bytes
                                      : tuner.current().shard_bytes < kStart.shard_bytes;
    move_tensors(tuner, bytes, 1, fits ? 500 : 1000);
  };
  for (int i = 0; i < 60; ++i) move_one(kSmall);
  ASSERT_TRUE(tuner.is_finished());
  const Tuning of_small = tuner.current();
  EXPECT_LT(of_small.shard_bytes, kStart.shard_bytes);
  for (int i = 0; i < 20; ++i) move_one(kLarge);
  EXPECT_FALSE(tuner.is_finished());
  EXPECT_EQ(tuner.current(), kStart);
  for (int i = 0; i < 60; ++i) move_one(kLarge);
  ASSERT_TRUE(tuner.is_finished());
  const Tuning of_large = tuner.current();
  EXPECT_GT(of_large.shard_bytes, kStart.shard_bytes);
  // A look that began with large ones does not tell, but the next does.
  for (int i = 0; i < 2 * 20 * 64; ++i) move_one(kSmall);
  EXPECT_TRUE(tuner.is_finished());
  EXPECT_EQ(tuner.current(), of_small);
  for (int i = 0; i < 2 * 20; ++i) move_one(kLarge);
  EXPECT_EQ(tuner.current(), of_large);
}

TEST(WorkWatch, TellsWorkApartByItsLargestOperation) {
  EXPECT_EQ(WorkWatch::class_of(4), WorkWatch::kSmall);
  EXPECT_EQ(WorkWatch::class_of((256 << 10) - 1), WorkWatch::kSmall);
  EXPECT_EQ(WorkWatch::class_of(256 << 10), 1);
  EXPECT_EQ(WorkWatch::class_of((2 << 20) - 1), 1);
  EXPECT_EQ(WorkWatch::class_of(2 << 20), 2);
  EXPECT_EQ(WorkWatch::class_of(16 << 20), 3);
  EXPECT_EQ(WorkWatch::class_of(uint64_t{1} << 40), 3);
}

TEST(Tuner, TunesOnceLargeTensorsComeAfterNothingButSmallOnes) {
  Tuner tuner(kStart, kAll, kDefaultEffort);
  for (int i = 0; i < 600; ++i) move_tensors(tuner, 1000, 1, 1000);
  ASSERT_TRUE(tuner.is_finished());
  for (int i = 0; i < 20; ++i) move_tensors(tuner, 64 << 20, 1, 1000);
  EXPECT_FALSE(tuner.is_finished());
}

TEST(Tuner, DoesNotTuneAgainForTheStepsThatItHasSeenNorForSomeOthersBetween) {
  Tuner tuner(kStart, kAll, kDefaultEffort);
  const auto train = [&] {
    tuner.note_batch(64 << 20, 64 << 20);
    tuner.record(64 << 20, nanoseconds(64'000));
    move_tensors(tuner, 1 << 20, 100, 1000);
  };
  for (int i = 0; i < 60; ++i) train();
  ASSERT_TRUE(tuner.is_finished());
  for (int epoch = 0; epoch < 10; ++epoch) {
    for (int i = 0; i < 30; ++i) train();
    for (int i = 0; i < 1000; ++i) move_tensors(tuner, 4, 1, 1000);  // an evaluation
    for (int i = 0; i < 5; ++i) move_tensors(tuner, 8 << 20, 1, 1000);
    EXPECT_TRUE(tuner.is_finished());
  }
}

TEST(Tuner, DisabledItKeepsTheStartAndAsksForNothing) {
  Tuner tuner(kStart, {}, kQuick);
  EXPECT_TRUE(tuner.is_finished());
  for (int i = 0; i < 100; ++i) record_step(tuner, 5);
  EXPECT_FALSE(tuner.result().has_value());
  EXPECT_EQ(tuner.current(), kStart);
}

TEST(Tuner, SmallStepsDoNotCount) {
  Tuner tuner(kStart, kAll, kQuick);
  for (int i = 0; i < 100; ++i) {
    tuner.record(1000, nanoseconds(5));
    tuner.end_step();
  }
  EXPECT_FALSE(tuner.result().has_value());
  for (int i = 0; i < 3; ++i) record_step(tuner, 1000);
  EXPECT_EQ(tuner.result(), 1000u);
}

TEST(Tuner, EndsWithTheStartAfterNothingButSmallStepsOnAnyRank) {
  Tuner small(kStart, kAll, kQuick), other(kStart, kAll, kQuick);
  other.conclude(1000);
  EXPECT_NE(other.current(), kStart);
  while (!small.result()) {
    small.record(1000, nanoseconds(5));
    small.end_step();
    ASSERT_LT(small.steps(), 1000);
  }
  const uint64_t verdict = *small.result();
  EXPECT_EQ(verdict, Tuner::kNothingToMeasure);
  for (Tuner* tuner : {&small, &other}) {
    tuner->conclude(verdict);
    EXPECT_TRUE(tuner->is_finished());
    EXPECT_EQ(tuner->current(), kStart);
  }
}

TEST(Tuner, TriesMoreConnectionsBetweenHostsThanItBeginsWithButNoMoreThanThereAre) {
  EXPECT_EQ(Candidates::between_hosts(kDefaults, 8).streams, (std::vector<uint64_t>{2, 4, 8}));
  EXPECT_EQ(Candidates::between_hosts(kDefaults, 4).streams, (std::vector<uint64_t>{2, 4}));
  EXPECT_EQ(Candidates::inside_a_host(kDefaults).streams, (std::vector<uint64_t>{1, 2, 4}));
}

TEST(Tuner, TheStepInWhichATrialBeginsDoesNotCount) {
  Tuner tuner(kStart, kAll, kQuick);
  for (int i = 0; i < 3; ++i) record_step(tuner, 1000);
  tuner.conclude(1000);
  record_step(tuner, 5);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(tuner.result().has_value());
    record_step(tuner, 1400);
  }
  EXPECT_EQ(tuner.result(), 1400u);
}

TEST(Tuner, TheVerdictIsThatOfTheSlowestRank) {
  Tuner tuner(kStart, kAll, kQuick);
  tuner.conclude(1000);
  const Tuning fast_here = tuner.current();
  tuner.conclude(5000);  // another rank was slow with it
  while (!tuner.is_finished()) {
    tuner.conclude(2000);
    EXPECT_NE(tuner.current(), fast_here);
  }
  EXPECT_EQ(tuner.current(), kStart);
}

TEST(Tuner, WhatTheUserHasChosenIsNeverChanged) {
  Candidates only_streams;
  only_streams.streams = {1, 2, 4, 8};
  Tuning start = kStart;
  start.shard_bytes = 123;
  start.merge_bytes = 456;
  Tuner tuner(start, only_streams, kQuick);
  while (!tuner.is_finished()) {
    Tuning rest = tuner.current();
    rest.streams = start.streams;
    EXPECT_EQ(rest, start);
    tuner.conclude(1000 * static_cast<uint64_t>(tuner.current().streams));
  }
  EXPECT_EQ(tuner.current().streams, 1);
}

}  // namespace
}  // namespace perseus
