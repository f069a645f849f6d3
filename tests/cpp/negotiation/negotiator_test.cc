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

TEST(Negotiator, KnowsWhatTheOtherRankOfTwoOffers) {
  Cluster cluster(2);
  const auto key = [](const std::string& name) {
    return operation_key(OperationKind::kAllreduce, name);
  };
  const auto offers = [&] { return cluster.at(1).offers(); };
  cluster.submit(0, "early");  // its ballot waits, as rank 1 has nothing ready
  cluster.deliver_all();
  EXPECT_TRUE(offers().empty());
  cluster.at(1).watch_offers(true);
  cluster.at(1).advance();
  cluster.deliver_all();
  EXPECT_EQ(offers(), Names{key("early")});
  cluster.submit(0, "late");
  cluster.deliver_all();
  EXPECT_EQ(offers(), (Names{key("early"), key("late")}));
  cluster.submit(1, "late");
  cluster.deliver_all();
  EXPECT_EQ(cluster.ready(1), Names{"late"});
  EXPECT_EQ(offers(), Names{key("early")});
  cluster.submit(1, "early");
  cluster.deliver_all();
  EXPECT_TRUE(offers().empty());
  // Names that are known take a bit each.
  for (const char* name : {"late", "early"}) cluster.submit(0, name);
  cluster.deliver_all();
  EXPECT_EQ(offers(), (Names{key("early"), key("late")}));
}

TEST(Negotiator, ALaterWatchLearnsWhatEarlierBallotsOffered) {
  Cluster cluster(2);
  for (const char* name : {"a", "b"}) cluster.submit_quietly(0, name);
  cluster.at(0).advance();
  cluster.submit(1, "b");
  cluster.deliver_all();
  EXPECT_EQ(cluster.ready(1), Names{"b"});
  cluster.at(1).watch_offers(true);
  cluster.at(1).demand(cluster.at(1).completed_rounds() + 1);
  cluster.at(0).demand(cluster.at(1).completed_rounds() + 1);
  for (int r = 0; r < 2; ++r) cluster.at(r).advance();
  cluster.deliver_all();
  EXPECT_EQ(cluster.at(1).offers(), Names{operation_key(OperationKind::kAllreduce, "a")});
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

// By index, one after the other.
std::vector<std::byte> inputs_of_all(int size, size_t bytes) {
  std::vector<std::byte> all;
  for (int r = 0; r < size; ++r) {
    const std::vector<std::byte> its = Cluster::input(r, bytes);
    all.insert(all.end(), its.begin(), its.end());
  }
  return all;
}

TEST_P(AnySize, SmallInputsComeWithTheAgreementAlsoOnFirstSight) {
  Cluster cluster(GetParam());
  cluster.give_inputs(sizeof(float));
  const auto submit_everywhere = [&] {
    for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "a");
    return cluster.deliver_all();
  };
  const int messages = submit_everywhere();  // a record, on first sight
  EXPECT_EQ(submit_everywhere(), messages);
  for (int r = 0; r < cluster.size(); ++r) {
    ASSERT_EQ(cluster.inputs(r).size(), 2u);
    for (const auto& inputs : cluster.inputs(r)) {
      EXPECT_EQ(inputs, inputs_of_all(cluster.size(), sizeof(float))) << "rank " << r;
    }
  }
}

// Every rank's ballot has one record, of a name of its own.
TEST_P(AnySize, NoInputsComeWhereRanksNameDifferentNewOperations) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  Cluster cluster(GetParam());
  cluster.give_inputs(sizeof(float));
  for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "of " + std::to_string(r));
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_TRUE(cluster.ready(r).empty());
    for (const auto& inputs : cluster.inputs(r)) EXPECT_TRUE(inputs.empty());
  }
  for (int r = 0; r < cluster.size(); ++r) {
    for (int other = 0; other < cluster.size(); ++other) {
      if (other != r) cluster.submit_quietly(r, "of " + std::to_string(other));
    }
    cluster.at(r).advance();
  }
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.ready(r).size(), static_cast<size_t>(cluster.size()));
    EXPECT_EQ(cluster.inputs(r), cluster.inputs(0));
    for (const auto& inputs : cluster.inputs(r)) EXPECT_TRUE(inputs.empty());
  }
}

TEST_P(AnySize, NoInputsComeWhereRanksDescribeANewOperationDifferently) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  Cluster cluster(GetParam());
  cluster.give_inputs(sizeof(float));
  for (int r = 0; r < cluster.size(); ++r) {
    cluster.submit(r, "a", Cluster::floats(r == 0 ? Shape{1, 1} : Shape{1}));
  }
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.failures(r).size(), 1u);
    for (const auto& inputs : cluster.inputs(r)) EXPECT_TRUE(inputs.empty());
  }
}

TEST_P(AnySize, NoInputsComeWhereOneRankHasMoreToSayOrNoneOrHasJoined) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  Cluster cluster(GetParam());
  const int odd = cluster.size() - 1;
  for (int r = 0; r < cluster.size(); ++r) {
    cluster.submit_quietly(r, "a");
    cluster.submit(r, "b");
  }
  cluster.deliver_all();
  cluster.give_inputs(sizeof(float));
  for (int r = 0; r < cluster.size(); ++r) {
    cluster.submit_quietly(r, "a");
    if (r == odd) cluster.submit_quietly(r, "b");
    cluster.at(r).advance();
  }
  cluster.deliver_all();
  for (int r = 0; r < odd; ++r) cluster.submit(r, "b");
  cluster.deliver_all();
  cluster.join(odd);
  for (int r = 0; r < odd; ++r) cluster.submit(r, "a");
  cluster.deliver_all();
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.ready(r), (Names{"a", "b", "a", "b", "a"})) << "rank " << r;
    const auto& inputs = cluster.inputs(r);
    EXPECT_EQ(inputs, cluster.inputs(0)) << "rank " << r;
    // Only "b" was pending alone, after everything else was done.
    const std::vector<std::byte> all = inputs_of_all(cluster.size(), sizeof(float));
    EXPECT_EQ(std::count(inputs.begin(), inputs.end(), all), 1);
    EXPECT_EQ(
        std::count_if(inputs.begin(), inputs.end(), [](const auto& each) { return !each.empty(); }),
        1);
  }
}

TEST_P(AnySize, RanksThatSubmitInDifferentOrdersHaveAllInputsOrNone) {
  Cluster cluster(GetParam(), 11);
  cluster.give_inputs(sizeof(float));
  std::mt19937 random(5);
  Names names = {"a", "b", "c"};
  constexpr int kSteps = 60;
  for (int step = 0; step < kSteps; ++step) {
    std::vector<Names> orders(cluster.size(), names);
    for (Names& order : orders) std::shuffle(order.begin(), order.end(), random);
    for (size_t i = 0; i < names.size(); ++i) {
      for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, orders[r][i]);
      if (random() % 2 == 0) cluster.deliver_all();
    }
    cluster.deliver_all();
    for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "alone");
    cluster.deliver_all();
  }
  const std::vector<std::byte> all = inputs_of_all(cluster.size(), sizeof(float));
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.ready(r).size(), kSteps * (names.size() + 1));
    EXPECT_EQ(cluster.inputs(r), cluster.inputs(0)) << "rank " << r;
    const auto came = std::count(cluster.inputs(r).begin(), cluster.inputs(r).end(), all);
    const auto absent =
        std::count(cluster.inputs(r).begin(), cluster.inputs(r).end(), std::vector<std::byte>());
    EXPECT_EQ(came + absent, static_cast<int64_t>(cluster.inputs(r).size()));
    EXPECT_GE(came, kSteps - 1);
    for (size_t i = 0; i < cluster.inputs(r).size(); ++i) {
      if (!cluster.inputs(r)[i].empty()) {
        EXPECT_EQ(cluster.agreements(r)[i].ready.size(), 1u);
      }
    }
  }
}

Description gathered(int64_t rows) {
  Description description = Cluster::floats({rows});
  description.kind = OperationKind::kAllgather;
  return description;
}

TEST_P(AnySize, SizesOfAllRanksComeWithTheAgreement) {
  Cluster cluster(GetParam());
  cluster.give_sizes(sizeof(int64_t), [](int) { return true; });
  for (int step = 0; step < 2; ++step) {
    for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "a", gathered(r));
    cluster.deliver_all();
  }
  for (int r = 0; r < cluster.size(); ++r) {
    ASSERT_EQ(cluster.sizes(r).size(), 2u);
    for (const auto& sizes : cluster.sizes(r)) {
      EXPECT_EQ(sizes, inputs_of_all(cluster.size(), sizeof(int64_t))) << "rank " << r;
    }
    EXPECT_TRUE(cluster.inputs(r)[1].empty());
  }
}

// Both take eight bytes.
TEST_P(AnySize, NothingComesIfSomeRanksSendTheirInputAndOthersItsSize) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  Cluster cluster(GetParam());
  cluster.give_sizes(sizeof(int64_t), [](int rank) { return rank == 1; });
  for (int step = 0; step < 2; ++step) {
    for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, "a", gathered(2));
    cluster.deliver_all();
  }
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.ready(r), (Names{"a", "a"})) << "rank " << r;
    EXPECT_TRUE(cluster.inputs(r)[1].empty());
    EXPECT_TRUE(cluster.sizes(r)[1].empty());
  }
}

TEST(Negotiator, LargeInputsStayBehind) {
  for (const size_t bytes : {size_t{2048}, size_t{2052}}) {
    Cluster cluster(2);
    cluster.give_inputs(bytes);
    const int64_t elements = static_cast<int64_t>(bytes / sizeof(float));
    for (int step = 0; step < 2; ++step) {
      for (int r = 0; r < 2; ++r) cluster.submit(r, "a", Cluster::floats({elements}));
      cluster.deliver_all();
    }
    for (int r = 0; r < 2; ++r) {
      const auto expected = bytes == 2048 ? inputs_of_all(2, bytes) : std::vector<std::byte>();
      EXPECT_EQ(cluster.inputs(r).back(), expected) << bytes << " bytes";
    }
  }
}

TEST(Negotiator, InputsOfAnotherSizeThanTheirNameHasAreAnError) {
  Cluster cluster(2);
  for (int r = 0; r < 2; ++r) cluster.submit(r, "a");
  cluster.deliver_all();
  cluster.give_inputs(2 * sizeof(float));
  for (int r = 0; r < 2; ++r) cluster.submit(r, "a");
  cluster.deliver_all();
  for (int r = 0; r < 2; ++r) EXPECT_FALSE(cluster.at(r).failure().is_ok());
}

TEST(Negotiator, SizesOfAnOperationThatHasNoneOrOthersAreAnError) {
  const auto fails = [](const Description& description, size_t bytes) {
    Cluster cluster(2);
    cluster.give_sizes(bytes, [](int) { return true; });
    for (int step = 0; step < 2; ++step) {
      for (int r = 0; r < 2; ++r) cluster.submit(r, "a", description);
      cluster.deliver_all();
    }
    return !cluster.at(0).failure().is_ok() && !cluster.at(1).failure().is_ok();
  };
  EXPECT_FALSE(fails(gathered(1), sizeof(int64_t)));
  EXPECT_TRUE(fails(gathered(1), 2 * sizeof(int64_t)));
  EXPECT_TRUE(fails(Cluster::floats({2}), sizeof(int64_t)));
}

TEST(Piggyback, BytesThatAreNoneAreRefused) {
  Piggyback whole;
  const std::vector<std::byte> input = Cluster::input(5, 8);
  whole.set(3, 5, {Attachment::Kind::kInput, input});
  ByteWriter writer;
  whole.write(writer);
  for (size_t size = 0; size <= writer.size(); ++size) {
    ByteReader reader(writer.bytes().first(size));
    Piggyback copy;
    EXPECT_EQ(copy.read(reader), size == writer.size()) << size;
  }
  // Attachments of more bytes than may be sent along, of none, and of a kind that does not exist.
  const auto is_read = [](uint8_t kind, uint32_t bytes) {
    ByteWriter writer;
    writer.put<uint32_t>(3);
    writer.put(kind);
    writer.put(bytes);
    writer.put<uint64_t>(1);
    writer.put_bytes(std::vector<std::byte>(5000).data(), 5000);
    ByteReader reader(writer.bytes());
    Piggyback copy;
    return copy.read(reader);
  };
  EXPECT_TRUE(is_read(0, 8));
  for (const uint32_t bytes : {0u, 5000u, UINT32_MAX}) EXPECT_FALSE(is_read(0, bytes)) << bytes;
  EXPECT_FALSE(is_read(2, 8));
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
