// Numbers that ranks announce with their ballots.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

#include "negotiation/ballot.h"
#include "negotiation/cluster.h"

namespace perseus {
namespace {

struct NoOperations final : KnownOperations {
  const Description& description(uint32_t) const override { return none; }
  uint32_t find(const std::string&) const override { return kNoId; }
  Description none;
};

Ballot announcing(uint64_t number, bool all_joined = false) {
  Ballot ballot;
  ballot.announced = number;
  ballot.all_joined = all_joined;
  return ballot;
}

Ballot merged(Ballot a, Ballot b) {
  a.merge(std::move(b), NoOperations());
  return a;
}

std::vector<std::byte> written(const Ballot& ballot) {
  ByteWriter writer;
  ballot.write(writer);
  return {writer.bytes().begin(), writer.bytes().end()};
}

TEST(AnnouncingBallots, AreMergedToTheHighestNumberInAnyOrder) {
  std::vector<Ballot> some;
  for (const uint64_t number : {uint64_t{0}, uint64_t{1}, uint64_t{7}, UINT64_MAX}) {
    for (const bool all_joined : {false, true}) some.push_back(announcing(number, all_joined));
  }
  for (const Ballot& a : some) {
    EXPECT_EQ(merged(a, a).announced, a.announced);
    for (const Ballot& b : some) {
      const Ballot both = merged(a, b);
      EXPECT_EQ(both.announced, std::max(a.announced, b.announced));
      EXPECT_EQ(merged(b, a).announced, both.announced);
      EXPECT_EQ(merged(both, a).announced, both.announced);
      for (const Ballot& c : some) {
        EXPECT_EQ(merged(both, c).announced, merged(a, merged(b, c)).announced);
      }
    }
  }
}

TEST(AnnouncingBallots, AreReadAsTheyWereWritten) {
  const size_t silent = written(announcing(0)).size();
  for (const uint64_t number : {uint64_t{0}, uint64_t{1}, uint64_t{300}, UINT64_MAX}) {
    for (const bool has_piggyback : {false, true}) {
      Ballot sent = announcing(number);
      const std::array<std::byte, 4> input{};
      if (has_piggyback) sent.piggyback.set(kNoId, 0, {Attachment::Kind::kInput, input});
      const std::vector<std::byte> bytes = written(sent);
      if (!has_piggyback) {
        EXPECT_EQ(bytes.size(), silent + (number == 0 ? 0 : sizeof number));
      }
      Ballot read = announcing(12);  // what a ballot before this one has left there
      ByteReader reader(bytes);
      ASSERT_TRUE(read.read(reader));
      EXPECT_EQ(reader.remaining(), 0u);
      EXPECT_EQ(read.announced, number);
      EXPECT_EQ(read.piggyback.empty(), !has_piggyback);
      ByteReader cut{std::span(bytes).first(bytes.size() - 1)};
      EXPECT_FALSE(read.read(cut));
    }
  }
}

class AnnouncementsTest : public testing::TestWithParam<int> {
 protected:
  static std::vector<uint64_t> announced(const Cluster& cluster, int rank) {
    std::vector<uint64_t> numbers;
    for (const Agreement& agreement : cluster.agreements(rank)) {
      numbers.push_back(agreement.announced);
    }
    return numbers;
  }
  static void submit_everywhere(Cluster& cluster, const std::string& name) {
    for (int r = 0; r < cluster.size(); ++r) cluster.submit(r, name);
    cluster.deliver_all();
  }
};

TEST_P(AnnouncementsTest, AllRanksHearTheSameNumberWithTheSameAgreement) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    Cluster cluster(GetParam(), seed);
    if (seed % 2 == 0) cluster.give_inputs(sizeof(float));
    std::mt19937 random(seed);
    std::vector<uint64_t> own(cluster.size());
    uint64_t highest = 0;
    const auto at_times_announce = [&] {
      if (random() % 4 != 0) return;
      const auto rank = static_cast<int>(random() % cluster.size());
      own[rank] += random() % 5;
      highest = std::max(highest, own[rank]);
      cluster.announce(rank, own[rank]);
    };
    for (int step = 0; step < 30; ++step) {
      const std::string name = "t" + std::to_string(step / 2);  // each is new once
      for (int r = 0; r < cluster.size(); ++r) {
        at_times_announce();
        cluster.submit(r, name);
        if (random() % 2 == 0) cluster.deliver_one();
      }
      do {
        at_times_announce();
      } while (cluster.deliver_one());
    }
    submit_everywhere(cluster, "last");
    const std::vector<uint64_t> numbers = announced(cluster, 0);
    EXPECT_TRUE(std::is_sorted(numbers.begin(), numbers.end()));
    EXPECT_EQ(numbers.back(), highest);
    EXPECT_GT(highest, 0u);
    for (int r = 0; r < cluster.size(); ++r) {
      EXPECT_EQ(announced(cluster, r), numbers) << "rank " << r << ", seed " << seed;
    }
  }
}

TEST_P(AnnouncementsTest, WhatARankSubmitsAfterwardsCarriesItsNumber) {
  for (int announcer = 0; announcer < GetParam(); ++announcer) {
    Cluster cluster(GetParam());
    submit_everywhere(cluster, "a");
    for (int r = 0; r < cluster.size(); ++r) {
      if (r != announcer) cluster.submit(r, "a");
    }
    cluster.deliver_all();
    cluster.announce(announcer, 9);
    cluster.submit(announcer, "a");
    cluster.deliver_all();
    submit_everywhere(cluster, "b");  // new, and thus a record
    for (int r = 0; r < cluster.size(); ++r) {
      EXPECT_EQ(announced(cluster, r), (std::vector<uint64_t>{0, 9, 9})) << "rank " << r;
    }
  }
}

TEST_P(AnnouncementsTest, AnnouncingSendsNothing) {
  Cluster cluster(GetParam());
  submit_everywhere(cluster, "a");
  for (int r = 0; r < cluster.size(); ++r) {
    cluster.announce(r, 1 + r);
    cluster.at(r).advance();
  }
  EXPECT_EQ(cluster.deliver_all(), 0);
}

TEST_P(AnnouncementsTest, ANumberTakesBytesOnlyUntilAllHaveHeardOfIt) {
  Cluster cluster(GetParam());
  const auto bytes_of_a_round = [&] {
    const uint64_t before = cluster.traffic(0).bytes_sent;
    submit_everywhere(cluster, "a");
    return cluster.traffic(0).bytes_sent - before;
  };
  submit_everywhere(cluster, "a");
  const uint64_t silent = bytes_of_a_round();
  const uint64_t messages = cluster.traffic(0).messages_sent / 2;
  cluster.announce(0, 5);
  EXPECT_EQ(bytes_of_a_round(), silent + messages * sizeof(uint64_t));
  EXPECT_EQ(bytes_of_a_round(), silent);
  cluster.announce(cluster.size() - 1, 5);  // no news
  EXPECT_EQ(bytes_of_a_round(), silent);
  for (int r = 0; r < cluster.size(); ++r) EXPECT_EQ(announced(cluster, r).back(), 5u);
}

TEST_P(AnnouncementsTest, TravelWithRanksThatHaveJoinedAndWithTheJoinItself) {
  for (const bool announces_first : {false, true}) {
    for (const bool others_go_on : {false, true}) {
      Cluster cluster(GetParam());
      submit_everywhere(cluster, "a");
      const int first = cluster.size() - 1;
      if (announces_first) cluster.announce(first, 4);
      cluster.join(first);
      cluster.announce(first, 4);
      for (int r = 0; r < first; ++r) {
        if (others_go_on) cluster.submit(r, "a");
      }
      cluster.deliver_all();
      for (int r = 0; r < first; ++r) cluster.join(r);
      cluster.deliver_all();
      // The ballot that says that it has joined is cast at once.
      const bool is_in_ballot = announces_first || (others_go_on && cluster.size() > 1);
      for (int r = 0; r < cluster.size(); ++r) {
        const Agreement& last = cluster.agreements(r).back();
        EXPECT_GE(last.last_joined, 0);
        EXPECT_EQ(last.announced, is_in_ballot ? 4u : 0u) << "rank " << r;
        EXPECT_EQ(announced(cluster, r), announced(cluster, 0));
      }
    }
  }
}

TEST_P(AnnouncementsTest, AFailedOperationLeavesTheNumberToTheNext) {
  if (GetParam() < 2) GTEST_SKIP() << "one rank cannot differ from itself";
  Cluster cluster(GetParam());
  cluster.announce(1, 6);
  for (int r = 0; r < cluster.size(); ++r) {
    cluster.submit(r, "w", Cluster::floats({r == 0 ? 3 : 7}));
  }
  cluster.deliver_all();
  submit_everywhere(cluster, "a");
  for (int r = 0; r < cluster.size(); ++r) {
    EXPECT_EQ(cluster.failures(r).size(), 1u);
    EXPECT_EQ(cluster.agreements(r).back().announced, 6u) << "rank " << r;
    EXPECT_EQ(announced(cluster, r), announced(cluster, 0));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, AnnouncementsTest, testing::Range(1, 10));

}  // namespace
}  // namespace perseus
