#include "base/interruption.h"

#include <gtest/gtest.h>

#include <thread>

namespace perseus {
namespace {

TEST(Interruption, IsAskedUntilItSaysYes) {
  EXPECT_FALSE(can_be_interrupted());
  EXPECT_FALSE(is_interrupted());
  int asked = 0;
  set_interruption_check([](void* user) { return ++*static_cast<int*>(user) == 3 ? 1 : 0; },
                         &asked);
  EXPECT_TRUE(can_be_interrupted());
  EXPECT_FALSE(is_interrupted());
  EXPECT_FALSE(is_interrupted());
  EXPECT_TRUE(is_interrupted());
  EXPECT_TRUE(is_interrupted());
  EXPECT_EQ(asked, 3);
  std::thread([] { EXPECT_FALSE(can_be_interrupted()); }).join();
  set_interruption_check(nullptr, nullptr);
  EXPECT_FALSE(is_interrupted());
}

}  // namespace
}  // namespace perseus
