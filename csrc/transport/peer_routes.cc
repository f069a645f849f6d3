#include "transport/peer_routes.h"

#include <algorithm>
#include <utility>

namespace perseus {

PeerRoutes::PeerRoutes(const Options& options, const Topology& topology,
                       std::vector<AddressCard> cards, std::vector<LocalAddress> addresses)
    : options_(options),
      topology_(topology),
      cards_(std::move(cards)),
      addresses_(std::move(addresses)) {}

bool PeerRoutes::uses_shm(int peer) const {
  return options_.transport != TransportChoice::kTcp &&
         topology_.host_of[peer] == topology_.host_of[topology_.rank];
}

int PeerRoutes::control_channels(int peer) const {
  return uses_shm(peer) ? 1 : 1 + options_.connections;
}

bool PeerRoutes::dials(int peer, int index) const {
  return (index % 2 == 0) == (topology_.rank < peer);
}

std::vector<Endpoint> PeerRoutes::endpoints(int peer, int index) const {
  const AddressCard& card = cards_[peer];
  if (uses_shm(peer)) return {Endpoint::unix_name(card.unix_name)};
  std::vector<Endpoint> endpoints =
      candidates(addresses_, card.tcp, card.machine == cards_[topology_.rank].machine);
  // If the user has named several interfaces, the connections are spread over them.
  if (options_.interfaces_given && !endpoints.empty()) {
    std::rotate(endpoints.begin(), endpoints.begin() + index % endpoints.size(), endpoints.end());
  }
  return endpoints;
}

std::vector<Endpoint> PeerRoutes::sources(const std::vector<Endpoint>& endpoints) const {
  std::vector<Endpoint> sources;
  if (!options_.interfaces_given) return sources;
  for (const Endpoint& endpoint : endpoints) {
    const LocalAddress* best = nullptr;
    for (const LocalAddress& local : addresses_) {
      if (local.address.family() != endpoint.family()) continue;
      if (best == nullptr || (local.is_on_link(endpoint) && !best->is_on_link(endpoint))) {
        best = &local;
      }
    }
    sources.push_back(best == nullptr ? Endpoint() : best->address);
  }
  return sources;
}

}  // namespace perseus
