#include "watch/stall_verdict.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace perseus {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kLimitMs = 10'000;

std::string name_of(int rank) { return "rank " + std::to_string(rank) + " on here"; }

// Rank 0 asks about 'x', which takes all ranks, in a world where nobody waits yet.
struct StallVerdictTest : testing::Test {
  explicit StallVerdictTest(int size = 4) {
    stall.limit = std::chrono::milliseconds(kLimitMs);
    stall.name = "'x'";
    stall.ranks.resize(size);
    std::iota(stall.ranks.begin(), stall.ranks.end(), 0);
    stall.answers.resize(size, WaitAnswer());
  }
  WaitAnswer& of(int rank) { return *stall.answers[rank]; }
  // The rank waits for 'x'.
  void has_it(int rank, uint64_t waited_ms = kLimitMs) {
    of(rank).has_it = true;
    waits_for(rank, "'x'", {}, waited_ms);
  }
  void waits_for(int rank, const std::string& name, std::vector<int> ranks = {},
                 uint64_t waited_ms = kLimitMs) {
    of(rank).waits_for = name;
    of(rank).waited_ms = waited_ms;
    of(rank).ranks = std::move(ranks);
  }
  std::vector<int> given_up() {
    const auto verdict = judge(stall, name_of);
    return verdict ? verdict->given_up : std::vector<int>{-1};
  }
  std::string why() { return judge(stall, name_of).value().why; }

  Stall stall;
};

TEST_F(StallVerdictTest, TheRankThatTakesNoPartIsGivenUpByName) {
  for (const int rank : {0, 1, 2}) has_it(rank);
  of(3).last_submitted = "'allreduce.w'";
  of(3).idle_ms = 11'600;
  EXPECT_EQ(given_up(), std::vector{3});
  EXPECT_EQ(why(),
            "lost rank 3 on here: it takes no part: 'x' (10 s): missing on rank 3; ready on ranks "
            "0-2; rank 3 last submitted 'allreduce.w', 12 s ago; a rank that others wait for is "
            "given up after 10 s (PERSEUS_STALL_SHUTDOWN_TIME_SECONDS)");
}

TEST_F(StallVerdictTest, AllThatTakeNoPartAreGivenUpTogether) {
  for (const int rank : {0, 2}) has_it(rank);
  EXPECT_EQ(given_up(), (std::vector{1, 3}));
  EXPECT_EQ(why().find("lost rank 1 on here and rank 3 on here: they take no part"), 0u) << why();
  EXPECT_NE(why().find("rank 3 has submitted nothing yet"), std::string::npos) << why();
}

TEST_F(StallVerdictTest, ARankThatIsHeldUpByAnotherIsNotAtFault) {
  has_it(0);
  has_it(1);
  waits_for(2, "'y' in process set 1", {2, 3}, kLimitMs / 2);
  EXPECT_EQ(given_up(), std::vector{3});
  EXPECT_NE(why().find("missing on ranks 2, 3; ready on ranks 0, 1, and rank 2 waits for 'y' in "
                       "process set 1"),
            std::string::npos)
      << why();
}

TEST_F(StallVerdictTest, ARankOutsideTheSetsThatWaitIsNotAtFault) {
  stall.ranks = {0, 1};
  has_it(0);
  of(0).ranks = {0, 1};
  EXPECT_EQ(given_up(), std::vector{1});
}

TEST_F(StallVerdictTest, TheCulpritMayBeOutsideTheAskersSet) {
  stall.ranks = {0, 1};
  has_it(0);
  of(0).ranks = {0, 1};
  waits_for(1, "'y' in process set 2", {1, 3});
  EXPECT_EQ(given_up(), std::vector{3});
}

TEST_F(StallVerdictTest, TwoGroupsThatWaitForEachOtherAreBothNamedAndNobodyIsGivenUp) {
  for (const int rank : {0, 1}) has_it(rank);
  for (const int rank : {2, 3}) waits_for(rank, "'y'");
  EXPECT_EQ(given_up(), std::vector<int>{});
  EXPECT_EQ(why().find("the ranks wait for each other: ranks 0, 1 for 'x', ranks 2, 3 for 'y'"), 0u)
      << why();
}

TEST_F(StallVerdictTest, ARankThatTakesNoPartIsAtFaultBeforeGroupsThatWaitForEachOther) {
  has_it(0);
  waits_for(1, "'y'");
  waits_for(2, "'z'");
  EXPECT_EQ(given_up(), std::vector{3});
}

TEST_F(StallVerdictTest, ARankThatComesAtTheLastMomentIsNotGivenUp) {
  for (const int rank : {0, 1, 2}) has_it(rank);
  has_it(3, 1);
  EXPECT_EQ(given_up(), std::vector{-1}) << "no verdict";
  of(2) = WaitAnswer();
  EXPECT_EQ(given_up(), std::vector{2});
}

TEST_F(StallVerdictTest, ARankThatWorksInAnotherSetMeanwhileTakesNoPart) {
  for (const int rank : {0, 1, 2}) has_it(rank);
  waits_for(3, "'often' in process set 1", {2, 3}, 20);
  EXPECT_EQ(given_up(), std::vector{3});
}

TEST_F(StallVerdictTest, ARankThatHasJoinedIsNotAtFault) {
  has_it(0);
  has_it(1);
  of(2).has_joined = true;
  of(2).has_it = true;
  EXPECT_EQ(given_up(), std::vector{3});
}

TEST_F(StallVerdictTest, ARankThatWorksWithoutThoseThatHaveJoinedIsNotAtFault) {
  for (const int rank : {0, 1, 2}) {
    has_it(rank);
    of(rank).has_joined = true;
  }
  of(3).last_submitted = "'y' in process set 1";
  of(3).idle_ms = kLimitMs - 1;
  EXPECT_EQ(given_up(), std::vector{-1});
  of(3).idle_ms = kLimitMs;
  EXPECT_EQ(given_up(), std::vector{3});
}

TEST_F(StallVerdictTest, ARankThatDoesNotAnswerTakesNoPart) {
  for (const int rank : {0, 1, 2}) has_it(rank);
  stall.answers[3].reset();
  EXPECT_EQ(given_up(), std::vector{3});
  EXPECT_NE(why().find("rank 3 has not answered"), std::string::npos) << why();
}

TEST_F(StallVerdictTest, NothingIsDecidedBeforeAnythingHasWaitedTooLong) {
  for (const int rank : {0, 1, 2}) has_it(rank, kLimitMs - 1);
  EXPECT_EQ(given_up(), std::vector{-1});
}

TEST_F(StallVerdictTest, RanksThatDoNotExistAreIgnored) {
  has_it(0);
  of(0).ranks = {-1, 1, 99};
  EXPECT_EQ(given_up(), std::vector{1});
}

TEST_F(StallVerdictTest, TheLowestRankThatWaitsDecides) {
  stall.rank = 2;
  has_it(2);
  EXPECT_TRUE(decides(stall));
  waits_for(1, "'y'", {}, kLimitMs / 2 - 1);
  EXPECT_TRUE(decides(stall)) << "rank 1 has not waited for long";
  stall.answers[0].reset();
  EXPECT_TRUE(decides(stall)) << "rank 0 does not answer";
  waits_for(1, "'y'", {}, kLimitMs / 2);
  EXPECT_FALSE(decides(stall));
}

}  // namespace
}  // namespace perseus
