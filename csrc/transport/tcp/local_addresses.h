// This host's network addresses, to listen at and to connect from.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "transport/endpoint.h"

namespace perseus {

struct LocalAddress {
  std::string interface;
  Endpoint address;  // port 0
  Endpoint netmask;  // length 0 if unknown

  bool is_on_link(const Endpoint& other) const;  // returns whether both are in one network
};

// Returns the addresses of `interfaces` (names separated by commas; an error if one is unknown or
// has no address) or, if that is empty, of every interface that is up. See Interfaces for IPv6
// link-local addresses, which are left out.
Result<std::vector<LocalAddress>> local_addresses(const std::string& interfaces);

// Returns a peer's endpoints in the order to try: loopback first, then those on a network of this
// host, then the others. Unless both ranks are on the same machine, loopback is left out, and so
// are addresses that this host has itself.
std::vector<Endpoint> candidates(const std::vector<LocalAddress>& ours,
                                 const std::vector<Endpoint>& theirs, bool same_machine);

}  // namespace perseus
