#include "schedule/step_counter.h"

#include <gtest/gtest.h>

#include <vector>

namespace perseus {
namespace {

using Fingerprints = std::vector<uint64_t>;

TEST(StepCounter, BeginsAStepWhenAPartComesAgain) {
  StepCounter steps;
  EXPECT_EQ(steps.step(), 1);
  EXPECT_FALSE(steps.note(Fingerprints{1, 2}));
  EXPECT_FALSE(steps.note(Fingerprints{3}));
  EXPECT_EQ(steps.step(), 1);
  EXPECT_TRUE(steps.note(Fingerprints{4, 2}));
  EXPECT_EQ(steps.step(), 2);
  EXPECT_FALSE(steps.note(Fingerprints{1, 3}));  // these belong to the step before
  EXPECT_TRUE(steps.note(Fingerprints{4}));
  EXPECT_EQ(steps.step(), 3);
}

TEST(StepCounter, SkipsPartsThatOnlySomeStepsHave) {
  StepCounter steps;
  for (uint64_t step = 1; step <= 10; ++step) {
    steps.note(Fingerprints{7});
    EXPECT_EQ(steps.step(), static_cast<int64_t>(step));
    if (step % 4 == 0) steps.note(Fingerprints{8});
  }
}

TEST(StepCounter, ForgetsWhatNeverComesAgain) {
  StepCounter steps;
  for (uint64_t fingerprint = 1; fingerprint < 1'000'000; ++fingerprint)
    EXPECT_FALSE(steps.note(Fingerprints{fingerprint}));
  EXPECT_EQ(steps.step(), 1);
}

}  // namespace
}  // namespace perseus
