#include "negotiation/negotiator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "negotiation/cluster.h"

namespace perseus {
namespace {

using Names = std::vector<std::string>;

class AnySize : public testing::TestWithParam<int> {};

TEST_P(AnySize, EveryRankAgreesOnWhatAllHaveSubmitted) {
  Cluster cluster(GetParam());
  for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "a");
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) EXPECT_EQ(cluster.ready(r), Names{"a"}) << "rank " << r;
}

TEST_P(AnySize, NothingIsAgreedBeforeTheLastRankSubmits) {
  Cluster cluster(GetParam());
  for (int last = 0; last < cluster.size(); ++last) {
    const std::string name = "t" + std::to_string(last);
    for (int r = 0; r < cluster.size(); ++r) {
      if (r != last) cluster.submit(r, name);
    }
    cluster.deliver_all();
    for (int r = 0; r < cluster.size(); ++r) {
      EXPECT_EQ(cluster.ready(r).size(), static_cast<size_t>(last)) << "rank " << r;
    }
    cluster.submit(last, name);
    cluster.deliver_all();
    for (int r = 0; r < cluster.size(); ++r) EXPECT_EQ(cluster.ready(r).back(), name);
  }
}

TEST_P(AnySize, RanksThatSubmitInDifferentOrdersAgreeOnOne) {
  Cluster cluster(GetParam(), 7);
  std::mt19937 random(3);
  Names names;
  for (int i = 0; i < 30; ++i) names.push_back("t" + std::to_string(i));
  for (int step = 0; step < 5; ++step) {
    std::vector<Names> orders(cluster.size(), names);
    for (Names& order : orders) std::shuffle(order.begin(), order.end(), random);
    for (size_t i = 0; i < names.size(); ++i) {
      for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, orders[r][i]);
      if (i % 3 == 0) cluster.deliver_all();
    }
    cluster.deliver_all();
  }
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.ready(r), cluster.ready(0)) << "rank " << r;
    EXPECT_EQ(cluster.ready(r).size(), 5 * names.size());
  }
}

TEST_P(AnySize, EveryRankSendsTheSameLogarithmicNumberOfMessages) {
  Cluster cluster(GetParam());
  constexpr uint64_t kSteps = 10;
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "a");
    cluster.deliver_all();
  }
  const auto hops =
      static_cast<uint64_t>(std::bit_width(static_cast<unsigned>(cluster.size() - 1)));
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.agreements(r).size(), kSteps);
    EXPECT_EQ(cluster.traffic(r).messages_sent, hops * kSteps) << "rank " << r;
    EXPECT_EQ(cluster.traffic(r).messages_received, hops * kSteps) << "rank " << r;
  }
}

TEST_P(AnySize, AnIdleClusterSendsNothing) {
  Cluster cluster(GetParam());
  for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "a");
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) cluster.at(r).advance();
  EXPECT_EQ(cluster.deliver_all(), 0);
}

TEST_P(AnySize, DifferentShapesFailOnEveryRankNamingTheTwo) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  Cluster cluster(GetParam());
  const int odd = cluster.size() - 1;
  for (int r = 0; r < cluster.size(); ++r) {
    cluster.submit(r, "w", Cluster::floats({64, r == odd ? 3 : 7}));
  }
  cluster.deliver_all();
  const std::string expected = "allreduce of 'w': rank " + std::to_string(odd) +
                               " submitted float32[64,3], rank 0 float32[64,7]; every rank must "
                               "submit the same shape";
  for (int r = 0; r < cluster.size(); ++r) EXPECT_EQ(cluster.failures(r), Names{expected}) << r;

  // And the job goes on.
  for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "w", Cluster::floats({64, 7}));
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) EXPECT_EQ(cluster.ready(r), Names{"w"}) << r;
}

TEST_P(AnySize, OneRankThatRedescribesAKnownNameFailsOnEveryRankAlike) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  for (int odd = 0; odd < GetParam(); ++odd) {
    Cluster cluster(GetParam(), 5);
    for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "w", Cluster::floats({4}));
    cluster.deliver_all();
    for (int r = 0; r < cluster.size(); ++r) {
      cluster.submit(r, "w", Cluster::floats({r == odd ? 5 : 4}));
      if (r % 2 == 0) cluster.deliver_all();
    }
    cluster.deliver_all();
    ASSERT_EQ(cluster.failures(0).size(), 1u);
    for (int r = 0; r < cluster.size(); ++r) {
      EXPECT_EQ(cluster.failures(r), cluster.failures(0)) << "rank " << r << ", odd " << odd;
      EXPECT_NE(cluster.failures(r)[0].find("rank " + std::to_string(odd)), std::string::npos);
    }
  }
}

TEST_P(AnySize, WhatOneRankRefusesFailsOnAllAndItsNextSubmissionIsTheNextOfAll) {
  for (int odd = 0; odd < GetParam(); ++odd) {
    for (const bool is_known : {false, true}) {
      Cluster cluster(GetParam(), 7);
      const auto submit_everywhere = [&] {
        for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "w");
        cluster.deliver_all();
      };
      if (is_known) submit_everywhere();
      // Wrong twice, then right, before any other rank has submitted it.
      cluster.refuse(odd, "w", "its splits are wrong");
      cluster.refuse(odd, "w", "its root is wrong");
      cluster.submit(odd, "w");
      cluster.deliver_all();
      for (int call = 0; call < 3; ++call) {
        for (int r = 0; r < cluster.size(); ++r) {
          if (r != odd) cluster.submit(r, "w");
        }
        cluster.deliver_all();
      }
      const std::string who = "rank " + std::to_string(odd) + " could not take part: ";
      const Names expected{who + "its splits are wrong", who + "its root is wrong"};
      for (int r = 0; r < cluster.size(); ++r) {
        EXPECT_EQ(cluster.failures(r), expected) << "rank " << r << ", odd " << odd;
        EXPECT_EQ(cluster.ready(r).size(), is_known ? 2u : 1u) << "rank " << r << ", odd " << odd;
        for (const Agreement& agreement : cluster.agreements(r)) {
          for (const auto& failure : agreement.failures) {
            EXPECT_EQ(failure.is_refused_here, r == odd);
          }
        }
      }
      submit_everywhere();
      EXPECT_EQ(cluster.ready(odd).size(), is_known ? 3u : 2u);
    }
  }
}

TEST_P(AnySize, WhatAllRanksRefuseLeavesNothingBehind) {
  Cluster cluster(GetParam());
  for (int r = 0; r < cluster.size(); ++r) cluster.refuse(r, "w", "its type is wrong");
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.failures(r), Names{"rank 0 could not take part: its type is wrong"});
    cluster.submit(r, "w");
  }
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) EXPECT_EQ(cluster.ready(r), Names{"w"});
}

TEST_P(AnySize, ARefusalThatNobodyAskedForDoesNotKeepARankFromJoining) {
  Cluster cluster(GetParam());
  cluster.refuse(0, "w", "its type is wrong");
  for (int r = 0; r < cluster.size(); ++r) cluster.join(r);
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) {
    ASSERT_FALSE(cluster.agreements(r).empty());
    EXPECT_GE(cluster.agreements(r).back().last_joined, 0);
  }
}

TEST_P(AnySize, AnOverdueOperationIsMadeKnownToRanksThatTakePart) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank waits for nobody";
  Cluster cluster(GetParam());
  const int late = cluster.size() - 1;
  for (int r = 0; r < late; ++r) cluster.submit(r, "w");
  cluster.deliver_all();
  const std::string key = operation_key(OperationKind::kAllreduce, "w");
  cluster.at(0).mark_overdue(key);
  cluster.at(late).take_part_always(true);
  cluster.at(late).advance();
  cluster.deliver_all();
  cluster.at(0).advance();
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) {
    bool is_known = false;
    for (const Agreement& agreement : cluster.agreements(r)) {
      for (const auto& overdue : agreement.overdue) {
        EXPECT_EQ(overdue.key, key);
        EXPECT_EQ(overdue.waiting, std::vector<int32_t>{0});
        is_known = true;
      }
    }
    EXPECT_TRUE(is_known) << "rank " << r;
    EXPECT_TRUE(cluster.ready(r).empty());
  }
  cluster.at(late).take_part_always(false);
  cluster.submit(late, "w");
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) EXPECT_EQ(cluster.ready(r), Names{"w"}) << r;
}

TEST_P(AnySize, AShapeThatChangesOnAllRanksIsAgreedOn) {
  Cluster cluster(GetParam());
  for (int64_t extent : {3, 5, 5, 2}) {
    for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "w", Cluster::floats({extent}));
    cluster.deliver_all();
    for (int r = 0; r < cluster.size(); ++r) {
      const auto& shape = cluster.agreements(r).back().ready.front().description().tensors[0].shape;
      EXPECT_EQ(shape, Shape({extent}));
    }
  }
}

TEST_P(AnySize, JoinedRanksHaveEverythingReadyUntilAllHaveJoined) {
  Cluster cluster(GetParam());
  const int last = cluster.size() / 2;
  for (int r = 0; r < cluster.size(); ++r) {
    if (r != last) cluster.join(r);
  }
  cluster.deliver_all();
  for (int step = 0; step < 3; ++step) {
    cluster.submit(last, "new" + std::to_string(step));
    cluster.submit(last, "again");
    cluster.deliver_all();
  }
  for (int r = 0; r < cluster.size(); ++r) EXPECT_EQ(cluster.ready(r).size(), 6u) << "rank " << r;
  cluster.join(last);
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.agreements(r).back().last_joined, last) << "rank " << r;
  }
}

TEST_P(AnySize, NamesBeyondTheCapacityAreForgottenAlikeAndStillAgreedOn) {
  Cluster cluster(GetParam(), 2, 8);
  std::mt19937 random(11);
  for (int step = 0; step < 200; ++step) {
    const std::string name = "t" + std::to_string(random() % 30);
    for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, name);
    cluster.deliver_all();
  }
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.ready(r), cluster.ready(0));
    EXPECT_EQ(cluster.ready(r).size(), 200u);
  }
}

TEST_P(AnySize, WhatIsPendingOnOneRankIsAgreedOnThoughItsNameWasForgotten) {
  Cluster cluster(GetParam(), 2, 32);
  const auto submit_on_all = [&](const std::string& name, int first_rank) {
    for (int r = first_rank; r < cluster.size(); ++r) cluster.submit(r, name);
    cluster.deliver_all();
  };
  submit_on_all("early", 0);
  cluster.submit(0, "early");
  for (int i = 0; i < 100; ++i) submit_on_all("t" + std::to_string(i), 0);
  submit_on_all("early", 1);
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.ready(r), cluster.ready(0));
    EXPECT_EQ(cluster.ready(r).size(), 102u);
  }
}

TEST_P(AnySize, ARankThatLeavesLimitsTheRounds) {
  Cluster cluster(GetParam());
  for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "a");
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) {
    cluster.at(r).limit_rounds(1);
    EXPECT_TRUE(cluster.at(r).is_exhausted());
    cluster.submit(r, "b");
  }
  EXPECT_EQ(cluster.deliver_all(), 0);
}

INSTANTIATE_TEST_SUITE_P(Sizes, AnySize, testing::Values(1, 2, 3, 4, 5, 7, 8, 13, 16, 33));

TEST(Negotiator, SteadyStateCostsOneBitAName) {
  constexpr int kNames = 1000;
  Cluster cluster(8);
  uint64_t bytes_before = 0;
  for (int step = 0; step < 2; ++step) {
    bytes_before = cluster.traffic(0).bytes_sent;
    for (int r = 0; r < cluster.size(); ++r) {
      for (int i = 0; i < kNames; ++i) cluster.submit_quietly(r, "layer" + std::to_string(i));
      cluster.at(r).advance();
    }
    cluster.deliver_all();
  }
  const uint64_t bytes = cluster.traffic(0).bytes_sent - bytes_before;
  EXPECT_LT(bytes, 3 * (kNames / 8 + 80));
}

TEST(Negotiator, NewNamesAreOrderedAsTheLowestRankSubmittedThem) {
  Cluster cluster(3);
  const Names order = {"z", "m", "a"};
  for (const std::string& name : order) cluster.submit_quietly(0, name);
  cluster.at(0).advance();
  for (int r : {1, 2}) {
    for (const char* name : {"a", "m", "z"}) cluster.submit_quietly(r, name);
    cluster.at(r).advance();
  }
  cluster.deliver_all();
  EXPECT_EQ(cluster.ready(2), order);
}

TEST(Negotiator, HigherPriorityComesFirst) {
  Cluster cluster(2);
  for (int r = 0; r < 2; ++r) {
    for (int priority : {1, 3, 2}) {
      Description description = Cluster::one_float();
      description.priority = priority;
      cluster.submit_quietly(r, std::to_string(priority), description);
    }
    cluster.at(r).advance();
  }
  cluster.deliver_all();
  EXPECT_EQ(cluster.ready(0), (Names{"3", "2", "1"}));
}

TEST_P(AnySize, AnAgreementIsLaterThanWhatAnyRankHadHeardOf) {
  Cluster cluster(GetParam());
  for (int step = 0; step < 5; ++step) {
    for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "x" + std::to_string(step));
    cluster.deliver_all();
  }
  for (int r = 0; r < cluster.size(); ++r) {
    for (size_t i = 1; i < cluster.agreements(r).size(); ++i) {
      EXPECT_GT(cluster.agreements(r)[i].time, cluster.agreements(r)[i - 1].time);
      EXPECT_EQ(cluster.agreements(r)[i].time, cluster.agreements(0)[i].time);
    }
  }
}

TEST_P(AnySize, LaunchesHaveEndedWhenTheyHaveOnAllRanks) {
  Cluster cluster(GetParam());
  for (int r = 0; r < cluster.size(); ++r) {
    cluster.at(r).launches_ended(static_cast<uint64_t>(7 + r), /*others_wait=*/r == 0);
    cluster.at(r).take_part_for_launches(true);
    cluster.at(r).advance();
  }
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) {
    ASSERT_EQ(cluster.agreements(r).size(), 1u);
    EXPECT_EQ(cluster.agreements(r)[0].launches_ended, 7u);
  }
}

TEST_P(AnySize, ARoundThatIsPressedForEndsThoughNobodyElseHasAnythingReady) {
  Cluster cluster(GetParam());
  if (cluster.size() == 1) return;
  cluster.submit(0, "x");
  cluster.deliver_all();
  EXPECT_TRUE(cluster.at(0).is_in_round());
  for (int r = 1; r < cluster.size(); ++r) {
    cluster.at(r).demand(1);
    cluster.at(r).advance();
  }
  cluster.deliver_all();
  EXPECT_FALSE(cluster.at(0).is_in_round());
  EXPECT_TRUE(cluster.ready(0).empty());
  for (int r = 1; r < cluster.size(); ++r) cluster.submit(r, "x");
  cluster.deliver_all();
  EXPECT_EQ(cluster.ready(0), Names{"x"});
}

TEST(Negotiator, MalformedBallotsAreErrors) {
  Cluster cluster(2);
  const std::vector<std::byte> junk(100, std::byte{0xff});
  for (size_t size = 0; size < junk.size(); ++size) {
    EXPECT_FALSE(cluster.at(0).receive(std::span(junk).first(size)).is_ok()) << size;
  }
}

}  // namespace
}  // namespace perseus
