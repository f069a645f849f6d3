#include "base/core_distance.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <utility>
#include <vector>

namespace perseus {
namespace {

std::vector<int> own_processors() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof allowed, &allowed);
  std::vector<int> found;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor) {
    if (CPU_ISSET(processor, &allowed)) found.push_back(processor);
  }
  return found;
}

TEST(CoreDistance, IsMeasuredAndLeavesTheCallerWhereItWas) {
  const std::vector<int> processors = own_processors();
  if (processors.size() < 2) GTEST_SKIP() << "there is one processor only";
  for (const auto& [first, second] : {std::pair(0, 1), std::pair(1, 0)}) {
    const auto distance = core_distance(processors[first], processors[second]);
    if (distance.status().code() == StatusCode::kTimedOut) continue;  // others compute there
    ASSERT_TRUE(distance.is_ok()) << distance.status().message();
    EXPECT_GT(distance.value(), 1);
    EXPECT_LT(distance.value(), 100'000);
  }
  EXPECT_EQ(own_processors(), processors);
}

TEST(CoreDistance, NeedsTwoProcessorsThatThisProcessMayRunOn) {
  const int own = own_processors().front();
  for (const auto& [first, second] :
       {std::pair(own, own), std::pair(-1, own), std::pair(own, CPU_SETSIZE)}) {
    EXPECT_EQ(core_distance(first, second).status().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace perseus
