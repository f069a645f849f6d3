#include "engine/departures.h"

#include <gtest/gtest.h>

#include <string>

namespace perseus {
namespace {

struct DeparturesTest : testing::Test {
  Leaving leaving(int rank, const std::string& why = "") {
    Leaving message;
    message.rank = rank;
    message.why = why;
    return message;
  }
  bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  }

  Topology topology{0, 3, {0, 0, 0}, {"here"}, {0, 1, 2}};
  Departures departures{topology};
};

TEST_F(DeparturesTest, EachIsNewsOnce) {
  EXPECT_TRUE(departures.add(leaving(1, "no data")));
  EXPECT_FALSE(departures.add(leaving(1)));
  EXPECT_TRUE(departures.contains(1));
  EXPECT_FALSE(departures.contains(2));
  EXPECT_TRUE(departures.has_failed(1));
  EXPECT_FALSE(departures.has_failed(2));
  EXPECT_FALSE(departures.has_failed(-1));
}

TEST_F(DeparturesTest, TheNewsNamesTheRankAndItsReason) {
  departures.add(leaving(1, "no data"));
  departures.add(leaving(2));
  EXPECT_EQ(departures.news_of(1).rank, 1);
  EXPECT_TRUE(departures.news_of(1).has_left);
  EXPECT_EQ(departures.news_of(1).why, "rank 1 on here has ended: no data");
  EXPECT_TRUE(contains(departures.news_of(2).why, "rank 2 on here has shut down or ended"));
  departures.set_own_reason("the disk is full");
  EXPECT_EQ(departures.news_of(0).why, "rank 0 on here has ended: the disk is full");
}

TEST_F(DeparturesTest, ASetThatARankClosedSaysSo) {
  ProcessSet set;
  set.id = 9;
  set.departed = 2;
  EXPECT_EQ(departures.news_of_first(set).why, "rank 2 on here has closed process set 9");
  departures.add(leaving(2, "no data"));
  EXPECT_EQ(departures.news_of_first(set).why, "rank 2 on here has ended: no data");
}

}  // namespace
}  // namespace perseus
