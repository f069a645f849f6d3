// Chooses the addresses of this host on which rank 0 serves the rendezvous.
#pragma once

#include <string>
#include <vector>

namespace perseus {

// `told` is the name or address that the other ranks were given. `interfaces` are names separated
// by commas, or empty. An empty string in the result means every interface.
//
// If `told` is loopback or an address of this host, the result is that address. A name may stand
// for other addresses on other hosts, and often for loopback on this one. If `interfaces` are
// given, the result is their addresses and, for the ranks of this host, those that the name stands
// for here; otherwise it is every interface.
std::vector<std::string> listen_addresses(const std::string& told, const std::string& interfaces);

}  // namespace perseus
