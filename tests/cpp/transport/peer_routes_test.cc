#include "transport/peer_routes.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <string>

namespace perseus {
namespace {

Endpoint ip(const char* text, uint16_t port = 0) {
  Endpoint endpoint;
  auto& address = reinterpret_cast<sockaddr_in&>(endpoint.address);
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, text, &address.sin_addr);
  endpoint.length = sizeof address;
  return endpoint;
}

// Ranks 0 and 1 on host a, rank 2 on host b. Each has an address in two networks.
std::vector<AddressCard> three_cards() {
  std::vector<AddressCard> cards(3);
  for (int rank = 0; rank < 3; ++rank) {
    cards[rank].host_name = cards[rank].machine = rank < 2 ? "a" : "b";
    cards[rank].unix_name = "rank" + std::to_string(rank);
    for (const char* network : {"10.0.0.", "10.0.1."}) {
      cards[rank].tcp.push_back(ip((network + std::to_string(rank < 2 ? 1 : 2)).c_str(), 1000));
    }
  }
  return cards;
}

PeerRoutes routes_of(int rank, const PeerRoutes::Options& options) {
  const std::vector<AddressCard> cards = three_cards();
  std::vector<LocalAddress> addresses;
  for (const Endpoint& own : cards[rank].tcp) {
    LocalAddress& local = addresses.emplace_back();
    local.address = own;
    local.address.set_port(0);
    local.netmask = ip("255.255.255.0");
  }
  return PeerRoutes(options, make_topology(rank, cards), cards, addresses);
}

TEST(PeerRoutesTest, RanksOfOneHostShareMemoryUnlessTcpIsChosen) {
  const PeerRoutes by_default = routes_of(0, {TransportChoice::kAuto, 4, false});
  EXPECT_TRUE(by_default.uses_shm(1));
  EXPECT_FALSE(by_default.uses_shm(2));
  EXPECT_EQ(by_default.control_channels(1), 1);
  EXPECT_EQ(by_default.control_channels(2), 5);
  EXPECT_EQ(by_default.endpoints(1, 0)[0].to_string(), "unix:rank1");
  const PeerRoutes by_tcp = routes_of(0, {TransportChoice::kTcp, 4, false});
  EXPECT_FALSE(by_tcp.uses_shm(1));
  EXPECT_EQ(by_tcp.control_channels(1), 5);
}

TEST(PeerRoutesTest, ExactlyOneOfTwoRanksDialsEachChannel) {
  const PeerRoutes lower = routes_of(0, {TransportChoice::kAuto, 4, false});
  const PeerRoutes higher = routes_of(2, {TransportChoice::kAuto, 4, false});
  for (int index = 0; index < lower.control_channels(2); ++index) {
    EXPECT_NE(lower.dials(2, index), higher.dials(0, index)) << "channel " << index;
  }
  EXPECT_TRUE(lower.dials(2, 0));
  EXPECT_FALSE(lower.dials(2, 1));
}

TEST(PeerRoutesTest, ConnectionsAreSpreadOverInterfacesThatWereGiven) {
  const PeerRoutes routes = routes_of(0, {TransportChoice::kAuto, 4, true});
  EXPECT_EQ(routes.endpoints(2, 0)[0].to_string(), "10.0.0.2:1000");
  EXPECT_EQ(routes.endpoints(2, 1)[0].to_string(), "10.0.1.2:1000");
  EXPECT_EQ(routes.endpoints(2, 2)[0].to_string(), "10.0.0.2:1000");
  const std::vector<Endpoint> sources = routes.sources(routes.endpoints(2, 1));
  ASSERT_EQ(sources.size(), 2u);
  EXPECT_TRUE(sources[0].same_address(ip("10.0.1.1")));
  EXPECT_TRUE(sources[1].same_address(ip("10.0.0.1")));
}

TEST(PeerRoutesTest, WithoutGivenInterfacesAllConnectionsTryTheSameAddressFirst) {
  const PeerRoutes routes = routes_of(0, {TransportChoice::kAuto, 4, false});
  for (int index = 0; index < 5; ++index) {
    EXPECT_EQ(routes.endpoints(2, index)[0].to_string(), "10.0.0.2:1000");
  }
  EXPECT_TRUE(routes.sources(routes.endpoints(2, 0)).empty());
}

}  // namespace
}  // namespace perseus
