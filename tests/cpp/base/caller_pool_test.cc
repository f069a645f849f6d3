#include "base/caller_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace perseus {
namespace {

// Notes in `alive` which callers have not been destroyed.
struct Caller : PooledCaller {
  Caller(std::set<int>& alive, int number) : alive(alive), number(number) { alive.insert(number); }
  ~Caller() { alive.erase(number); }
  std::set<int>& alive;
  const int number;
};

TEST(CallerPool, HoldsNoMoreThanItsBound) {
  std::set<int> alive;
  CallerPool<Caller> pool(8);
  for (int i = 0; i < 100; ++i) {
    pool.add(std::make_unique<Caller>(alive, i));
    EXPECT_TRUE(alive.contains(i));  // a new one is not the one to go
    EXPECT_EQ(alive.size(), std::min<size_t>(i + 1, 8));
    EXPECT_EQ(pool.size(), alive.size());
  }
  while (pool.evict_one()) EXPECT_EQ(pool.size(), alive.size());
  EXPECT_TRUE(alive.empty());
}

TEST(CallerPool, ACallerThatIsTakenIsNotEvicted) {
  std::set<int> alive;
  CallerPool<Caller> pool(4);
  Caller& first = pool.add(std::make_unique<Caller>(alive, 0));
  Caller& second = pool.add(std::make_unique<Caller>(alive, 1));
  const std::unique_ptr<Caller> taken = pool.take(first);
  EXPECT_EQ(taken.get(), &first);
  for (int i = 2; i < 50; ++i) pool.add(std::make_unique<Caller>(alive, i));
  EXPECT_TRUE(alive.contains(0));
  EXPECT_EQ(pool.size(), 4U);
  if (alive.contains(1)) pool.take(second);
  EXPECT_FALSE(alive.contains(1));
}

// If the oldest had to go, none of them would outlive four that come after it.
TEST(CallerPool, AFloodCannotAimAtACaller) {
  constexpr int kTrials = 2000;
  int survived = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::set<int> alive;
    CallerPool<Caller> pool(4);
    for (int i = -4; i < 0; ++i) pool.add(std::make_unique<Caller>(alive, i));
    pool.add(std::make_unique<Caller>(alive, 0));
    for (int i = 1; i <= 4; ++i) pool.add(std::make_unique<Caller>(alive, i));
    survived += alive.contains(0);
  }
  // (3/4)^4 = 0.316, within ten standard deviations.
  EXPECT_NEAR(static_cast<double>(survived) / kTrials, 0.316, 0.104);
}

}  // namespace
}  // namespace perseus
