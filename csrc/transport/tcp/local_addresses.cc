#include "transport/tcp/local_addresses.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <sstream>

#include "base/interfaces.h"

namespace perseus {
namespace {

Endpoint endpoint_of(const sockaddr_storage& address) {
  Endpoint endpoint;
  if (address.ss_family == AF_UNSPEC) return endpoint;
  endpoint.length = address_length(address.ss_family);
  std::memcpy(&endpoint.address, &address, endpoint.length);
  return endpoint;
}

std::string join(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::string_view address_bytes(const Endpoint& endpoint) {
  if (endpoint.family() == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(endpoint.address);
    return {reinterpret_cast<const char*>(&v4.sin_addr), sizeof v4.sin_addr};
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(endpoint.address);
  return {reinterpret_cast<const char*>(&v6.sin6_addr), sizeof v6.sin6_addr};
}

}  // namespace

bool LocalAddress::is_on_link(const Endpoint& other) const {
  if (netmask.length == 0 || other.family() != address.family()) return false;
  const std::string_view ours = address_bytes(address), theirs = address_bytes(other),
                         mask = address_bytes(netmask);
  for (size_t i = 0; i < mask.size(); ++i) {
    if (((ours[i] ^ theirs[i]) & mask[i]) != 0) return false;
  }
  return true;
}

Result<std::vector<LocalAddress>> local_addresses(const std::string& interfaces) {
  const Result<Interfaces> found = Interfaces::list();
  if (!found.is_ok()) return found.status();
  std::vector<LocalAddress> all;
  for (const InterfaceAddress& one : found.value().addresses) {
    all.push_back({one.interface, endpoint_of(one.address), endpoint_of(one.netmask)});
    all.back().address.set_port(0);
  }
  if (interfaces.empty()) return all;

  std::vector<LocalAddress> chosen;
  std::istringstream names(interfaces);
  for (std::string name; std::getline(names, name, ',');) {
    if (name.empty()) continue;
    const size_t before = chosen.size();
    std::copy_if(all.begin(), all.end(), std::back_inserter(chosen),
                 [&](const LocalAddress& local) { return local.interface == name; });
    if (chosen.size() != before) continue;
    return Status::invalid_argument(
        "PERSEUS_INTERFACES names '" + name + "', which " +
        (found.value().names.contains(name) ? "is not up or has no address" : "does not exist") +
        " here; interfaces present: " + join(found.value().names));
  }
  return chosen;
}

std::vector<Endpoint> candidates(const std::vector<LocalAddress>& ours,
                                 const std::vector<Endpoint>& theirs, bool same_machine) {
  const auto rank_of = [&](const Endpoint& endpoint) {
    if (endpoint.is_loopback()) return same_machine ? 0 : -1;
    const bool is_ours = std::any_of(ours.begin(), ours.end(), [&](const LocalAddress& local) {
      return local.address.same_address(endpoint);
    });
    if (is_ours && !same_machine) return -1;
    const bool on_link = std::any_of(ours.begin(), ours.end(), [&](const LocalAddress& local) {
      return local.is_on_link(endpoint);
    });
    return on_link ? 1 : 2;
  };
  std::vector<Endpoint> ordered;
  for (int wanted = 0; wanted <= 2; ++wanted) {
    std::copy_if(theirs.begin(), theirs.end(), std::back_inserter(ordered),
                 [&](const Endpoint& endpoint) { return rank_of(endpoint) == wanted; });
  }
  return ordered;
}

}  // namespace perseus
