// This host's network addresses, for listening and for connecting from.
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

  bool is_on_link(const Endpoint& other) const;  // both in one network
};

// The addresses of `interfaces` (names separated by commas; an error if one is unknown or has no
// address), or if that is empty of every interface that is up. IPv6 link-local ones are left out:
// they mean nothing without the name of an interface on the other side.
Result<std::vector<LocalAddress>> local_addresses(const std::string& interfaces);

// Those of a peer in the order to try: on a network of ours first; loopback, foremost, if both are
// on one machine and not at all otherwise; not the ones that we have ourselves, unless so.
std::vector<Endpoint> candidates(const std::vector<LocalAddress>& ours,
                                 const std::vector<Endpoint>& theirs, bool same_machine);

}  // namespace perseus
