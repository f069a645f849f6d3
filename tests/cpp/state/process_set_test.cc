#include "state/process_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace perseus {
namespace {

ProcessSet set_of(std::vector<int> ranks, int rank) {
  ProcessSet set;
  set.ranks = std::move(ranks);
  set.index = set.index_of(rank);
  return set;
}

TEST(ProcessSet, KnowsItsRanksByIndex) {
  const ProcessSet set = set_of({1, 4, 6}, 4);
  EXPECT_EQ(set.index, 1);
  EXPECT_TRUE(set.has(6));
  EXPECT_FALSE(set.has(5));
  EXPECT_EQ(set.index_of(5), -1);
  EXPECT_EQ(set.index_of(7), -1);
}

TEST(ProcessSet, NeighboursAreThoseThatBallotsGoToAndComeFrom) {
  EXPECT_EQ(set_of({0}, 0).neighbours(), (std::vector<int>{}));
  EXPECT_EQ(set_of({0, 1}, 0).neighbours(), (std::vector<int>{1}));
  EXPECT_EQ(set_of({2, 3, 5}, 3).neighbours(), (std::vector<int>{5, 2}));
}

// News that everyone passes on to its neighbours reaches all, so the graph must be connected; and
// it is symmetric: a rank hears of those that hear of it.
TEST(ProcessSet, NeighboursConnectAllRanksBothWays) {
  for (int size = 1; size <= 33; ++size) {
    std::vector<int> ranks(size);
    std::iota(ranks.begin(), ranks.end(), 0);
    std::vector<std::vector<int>> neighbours;
    for (int rank = 0; rank < size; ++rank) neighbours.push_back(set_of(ranks, rank).neighbours());
    std::vector<int> reached = {0};
    for (size_t next = 0; next < reached.size(); ++next) {
      for (const int peer : neighbours[reached[next]]) {
        EXPECT_NE(std::ranges::find(neighbours[peer], reached[next]), neighbours[peer].end());
        if (std::ranges::find(reached, peer) == reached.end()) reached.push_back(peer);
      }
    }
    EXPECT_EQ(reached.size(), static_cast<size_t>(size));
  }
}

}  // namespace
}  // namespace perseus
