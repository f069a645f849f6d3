#include "schedule/step_counter.h"

#include <gtest/gtest.h>

#include <vector>

namespace perseus {
namespace {

using Signs = std::vector<uint64_t>;

TEST(StepCounter, BeginsAStepWhenAPartComesAgain) {
  StepCounter steps;
  EXPECT_EQ(steps.step(), 1);
  EXPECT_FALSE(steps.note(Signs{1, 2}));
  EXPECT_FALSE(steps.note(Signs{3}));
  EXPECT_EQ(steps.step(), 1);
  EXPECT_TRUE(steps.note(Signs{4, 2}));
  EXPECT_EQ(steps.step(), 2);
  EXPECT_FALSE(steps.note(Signs{1, 3}));  // of the step before
  EXPECT_TRUE(steps.note(Signs{4}));
  EXPECT_EQ(steps.step(), 3);
}

TEST(StepCounter, SkipsPartsThatOnlySomeStepsHave) {
  StepCounter steps;
  for (uint64_t step = 1; step <= 10; ++step) {
    steps.note(Signs{7});
    EXPECT_EQ(steps.step(), static_cast<int64_t>(step));
    if (step % 4 == 0) steps.note(Signs{8});
  }
}

TEST(StepCounter, ForgetsWhatNeverComesAgain) {
  StepCounter steps;
  for (uint64_t sign = 1; sign < 1'000'000; ++sign) EXPECT_FALSE(steps.note(Signs{sign}));
  EXPECT_EQ(steps.step(), 1);
}

}  // namespace
}  // namespace perseus
