// How this rank reaches each of its peers: over shared memory or TCP, by how many channels, from
// and to which addresses, and which of the two ranks connects each channel. Both ranks derive the
// same answers from the address cards. Immutable; any thread.
//
// The two ranks dial the channels alternately: the lower rank dials channel 0, the higher one
// channel 1, and so on. If one rank dialled all of them, the other would send everything from the
// port that it listens on, and a network that tells flows apart by that port would see only one.
#pragma once

#include <vector>

#include "base/setting_choices.h"
#include "transport/address_card.h"
#include "transport/endpoint.h"
#include "transport/tcp/local_addresses.h"
#include "transport/topology.h"

namespace perseus {

class PeerRoutes {
 public:
  struct Options {
    TransportChoice transport = TransportChoice::kAuto;
    int connections = 0;            // TCP connections for data between two ranks
    bool interfaces_given = false;  // by PERSEUS_INTERFACES
  };

  PeerRoutes() = default;
  // `addresses`: this host's, on the interfaces that may be used.
  PeerRoutes(const Options& options, const Topology& topology, std::vector<AddressCard> cards,
             std::vector<LocalAddress> addresses);

  bool uses_shm(int peer) const;
  // The name of the peer's process; see KeptLinks.
  const Nonce& process(int peer) const { return cards_[peer].process; }
  // The channels that the mesh connects. Over TCP: those for data, and the express channel.
  int control_channels(int peer) const;
  // Returns whether this rank, rather than the peer, connects channel `index`.
  bool dials(int peer, int index) const;
  // Where the peer can be reached, in the order to try; empty if nowhere.
  std::vector<Endpoint> endpoints(int peer, int index) const;
  // The addresses to connect to these endpoints from (of length 0: any), or none at all.
  std::vector<Endpoint> sources(const std::vector<Endpoint>& endpoints) const;

 private:
  Options options_;
  Topology topology_;
  std::vector<AddressCard> cards_;  // by rank
  std::vector<LocalAddress> addresses_;
};

}  // namespace perseus
