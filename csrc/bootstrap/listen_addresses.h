// On which of this host's addresses rank 0 serves the rendezvous.
#pragma once

#include <string>
#include <vector>

namespace perseus {

// `told` is where the other ranks are told to come: a name or an address. `interfaces` are names
// separated by commas, or empty. An empty string among the addresses is every interface.
//
// Loopback serves this host alone. An address of ours is what all others come to. A name may stand
// for another address elsewhere, often for loopback here: with named interfaces it adds to theirs
// what it stands for here, for the ranks of this host; without, every interface is listened on.
std::vector<std::string> listen_addresses(const std::string& told, const std::string& interfaces);

}  // namespace perseus
