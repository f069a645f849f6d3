#include "transport/tcp/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <set>
#include <sstream>

namespace perseus {
namespace {

socklen_t length_of(int family) {
  if (family == AF_INET) return sizeof(sockaddr_in);
  return family == AF_INET6 ? sizeof(sockaddr_in6) : 0;
}

Endpoint copy_of(const sockaddr* address, socklen_t length) {
  Endpoint endpoint;
  if (address == nullptr) return endpoint;
  std::memcpy(&endpoint.address, address, length);
  endpoint.length = length;
  return endpoint;
}

bool is_usable(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return false;
  const int family = entry.ifa_addr->sa_family;
  if (family != AF_INET6) return family == AF_INET;
  return !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(entry.ifa_addr)->sin6_addr);
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
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return Status::unreachable(std::string("cannot list the network interfaces: ") +
                               std::strerror(errno));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> guard(list, freeifaddrs);

  std::vector<LocalAddress> all;
  std::set<std::string> present;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    present.insert(entry->ifa_name);
    if (!is_usable(*entry)) continue;
    const socklen_t length = length_of(entry->ifa_addr->sa_family);
    all.push_back(
        {entry->ifa_name, copy_of(entry->ifa_addr, length), copy_of(entry->ifa_netmask, length)});
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
        (present.count(name) != 0 ? "is not up or has no address" : "does not exist") +
        " here; interfaces present: " + join(present));
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
