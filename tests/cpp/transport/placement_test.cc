#include "transport/placement.h"

#include <gtest/gtest.h>

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

TEST(Placement, NothingIsBoundUnlessAsked) {
  const std::vector<AddressCard> cards(4, card_of(""));
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
  const Processors low = processors_in("0-7"), high = processors_in("8-15");
  EXPECT_EQ(bound(cards), (std::vector<Processors>{low, low, high, high}));
  EXPECT_EQ(placed(cards, 3).cache_of, (std::vector<int>{0, 0, 8, 8}));
}

TEST(Placement, TwoRanksAndAHundredAreSpreadOverBothCaches) {
  EXPECT_EQ(placed(std::vector<AddressCard>(2, card_of("auto")), 0).cache_of,
            (std::vector<int>{0, 8}));
  const std::vector<int> of_many =
      placed(std::vector<AddressCard>(100, card_of("auto")), 0).cache_of;
  EXPECT_EQ(std::count(of_many.begin(), of_many.end(), 0), 50);
  EXPECT_EQ(std::count(of_many.begin(), of_many.end(), 8), 50);
}

TEST(Placement, OnlyWhatTheProcessMayRunOnIsUsed) {
  // A control group leaves 2 processors under one cache and 6 under the other.
  const std::vector<AddressCard> cards(4, card_of("auto", "6-13"));
  const Processors low = processors_in("6-7"), high = processors_in("8-13");
  EXPECT_EQ(bound(cards), (std::vector<Processors>{low, high, high, high}));
}

TEST(Placement, WhatTheLauncherHasBoundStaysAsItIs) {
  const std::vector<AddressCard> cards{card_of("auto", "0-3"), card_of("auto", "4-7"),
                                       card_of("auto", "8"), card_of("", "9-15")};
  EXPECT_EQ(bound(cards), std::vector<Processors>(4));
  EXPECT_EQ(placed(cards, 0).cache_of, (std::vector<int>{0, 0, 8, 8}));
}

TEST(Placement, NoThreadIsBoundToASingleProcessorAutomatically) {
  const std::vector<AddressCard> cards(2, card_of("auto", "7-9"));
  EXPECT_EQ(bound(cards), (std::vector<Processors>{Processors(), processors_in("8-9")}));
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

TEST(Placement, OneCacheOrNoneKnownBindsNothing) {
  std::vector<AddressCard> cards(2, card_of("auto", "0-5"));
  EXPECT_EQ(bound(cards), std::vector<Processors>(2));
  for (AddressCard& card : cards) card.caches.clear();
  EXPECT_EQ(bound(cards), std::vector<Processors>(2));
  EXPECT_EQ(placed(cards, 0).cache_of, std::vector<int>(2, Topology::kNotKnown));
}

TEST(Placement, GroupsThatAreGivenTakeThePlaceOfCaches) {
  EXPECT_EQ(placed(std::vector<AddressCard>(4, card_of("auto")), 0, "1,0,1,0,7").cache_of,
            (std::vector<int>{1, 0, 1, 0}));
}

TEST(Placement, GroupsForTooFewRanksAreAnErrorOnEveryRank) {
  std::vector<AddressCard> cards(4, card_of(""));
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
