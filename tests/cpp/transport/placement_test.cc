#include "transport/placement.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "transport/address_card.h"

namespace perseus {
namespace {

Processors processors_in(const char* list) { return Processors::parse(list).value(); }

// A machine of two caches, with processors 0 to 7 and 8 to 15.
AddressCard card_of(const char* affinity, const char* processors = "0-15") {
  AddressCard card;
  card.host_name = "node";
  card.machine = "boot 1";
  card.processors = processors_in(processors);
  for (const char* cache : {"0-7", "8-15"}) {
    if (!card.processors.common_with(processors_in(cache)).is_empty()) {
      card.caches.push_back(processors_in(cache));
    }
  }
  card.thread_affinity = affinity;
  return card;
}

Topology placed(const std::vector<AddressCard>& cards, int rank, const std::string& groups = "") {
  Topology topology = make_topology(rank, cards);
  topology.launched.resize(cards.size());
  EXPECT_TRUE(place_engines(cards, groups, topology).is_ok());
  return topology;
}

// The processors that each rank's engine's thread is bound to.
std::vector<Processors> bound(const std::vector<AddressCard>& cards) {
  std::vector<Processors> found;
  for (int rank = 0; rank < static_cast<int>(cards.size()); ++rank) {
    found.push_back(placed(cards, rank).engine_processors);
  }
  return found;
}

TEST(Placement, NothingIsBoundIfThatIsWanted) {
  const std::vector<AddressCard> cards(4, card_of("none"));
  EXPECT_EQ(bound(cards), std::vector<Processors>(4));
  EXPECT_EQ(placed(cards, 1).cache_of, std::vector<int>(4, Topology::kNotKnown));
}

TEST(Placement, AListGivesEachRankAProcessor) {
  const std::vector<AddressCard> cards(3, card_of("9,2"));
  EXPECT_EQ(bound(cards),
            (std::vector<Processors>{processors_in("9"), processors_in("2"), Processors()}));
  EXPECT_EQ(placed(cards, 0).cache_of, (std::vector<int>{8, 0, Topology::kNotKnown}));
}

TEST(Placement, NeighboursHaveACacheInCommonAutomatically) {
  const std::vector<AddressCard> cards(4, card_of("auto"));
  EXPECT_EQ(bound(cards), (std::vector<Processors>{processors_in("0-3"), processors_in("4-7"),
                                                   processors_in("8-11"), processors_in("12-15")}));
  EXPECT_EQ(placed(cards, 3).cache_of, (std::vector<int>{0, 0, 8, 8}));
}

TEST(Placement, ProcessorsAreDividedInTheOrderOfTheirCaches) {
  // As Linux numbers two threads of each core: the second ones come last.
  AddressCard card = card_of("auto", "0-7");
  card.caches = {processors_in("0-1,4-5"), processors_in("2-3,6-7")};
  const std::vector<AddressCard> cards(2, card);
  EXPECT_EQ(bound(cards), card.caches);
}

TEST(Placement, MoreRanksThanProcessorsAreSpreadEvenly) {
  const std::vector<AddressCard> cards(32, card_of("auto"));
  const std::vector<Processors> found = bound(cards);
  for (int rank = 0; rank < 32; ++rank) {
    EXPECT_EQ(found[rank], processors_in(std::to_string(rank / 2).c_str()));
  }
  const std::vector<int> cache_of = placed(cards, 0).cache_of;
  EXPECT_EQ(std::count(cache_of.begin(), cache_of.end(), 0), 16);
}

TEST(Placement, OnlyWhatTheProcessMayRunOnIsUsed) {
  // A control group leaves 2 processors under one cache and 6 under the other.
  const std::vector<AddressCard> cards(3, card_of("auto", "6-13"));
  EXPECT_EQ(bound(cards), (std::vector<Processors>{processors_in("6-7"), processors_in("8-10"),
                                                   processors_in("11-13")}));
}

TEST(Placement, WhatTheLauncherHasBoundStaysAsItIs) {
  const std::vector<AddressCard> cards{card_of("auto", "0-3"), card_of("auto", "4-7"),
                                       card_of("auto", "8"), card_of("none", "9-15")};
  EXPECT_EQ(bound(cards), std::vector<Processors>(4));
  EXPECT_EQ(placed(cards, 0).cache_of, (std::vector<int>{0, 0, 8, 8}));
}

TEST(Placement, AShareOfTwoCachesIsUnderNone) {
  const std::vector<AddressCard> cards(3, card_of("auto"));
  const int unknown = Topology::kNotKnown;
  EXPECT_EQ(placed(cards, 0).cache_of, (std::vector<int>{0, unknown, 8}));
}

TEST(Placement, RanksOfAnotherMachineAreNotCounted) {
  std::vector<AddressCard> cards(4, card_of("auto"));
  for (int rank : {2, 3}) cards[rank].machine = "boot 2";
  const Processors low = processors_in("0-7"), high = processors_in("8-15");
  EXPECT_EQ(bound(cards), (std::vector<Processors>{low, high, low, high}));
  // Caches of another host are none of this one's.
  const int unknown = Topology::kNotKnown;
  EXPECT_EQ(placed(cards, 0).cache_of, (std::vector<int>{0, 8, unknown, unknown}));
}

TEST(Placement, ProcessorsOfUnknownCachesAreDividedByNumber) {
  std::vector<AddressCard> cards(2, card_of("auto", "5-8"));
  for (AddressCard& card : cards) card.caches.clear();
  EXPECT_EQ(bound(cards), (std::vector<Processors>{processors_in("5-6"), processors_in("7-8")}));
  EXPECT_EQ(placed(cards, 0).cache_of, std::vector<int>(2, Topology::kNotKnown));
  for (AddressCard& card : cards) card.processors = Processors();  // not known either
  EXPECT_EQ(bound(cards), std::vector<Processors>(2));
}

TEST(Placement, GroupsThatAreGivenTakeThePlaceOfCaches) {
  EXPECT_EQ(placed(std::vector<AddressCard>(4, card_of("auto")), 0, "1,0,1,0,7").cache_of,
            (std::vector<int>{1, 0, 1, 0}));
}

TEST(Placement, GroupsForTooFewRanksAreAnErrorOnEveryRank) {
  std::vector<AddressCard> cards(4, card_of("none"));
  cards[0].host_name = "other";
  for (int rank = 0; rank < 4; ++rank) {
    Topology topology = make_topology(rank, cards);
    topology.launched = {0, 1, 2, 3};
    const Status status = place_engines(cards, "0,1", topology);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              "PERSEUS_CACHE_GROUPS is '0,1', and there is no number in it for rank 3 on node; it "
              "must have one for each rank of a host");
  }
}

}  // namespace
}  // namespace perseus
