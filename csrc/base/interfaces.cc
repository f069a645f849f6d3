#include "base/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <memory>

namespace perseus {
namespace {

bool is_usable(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return false;
  const int family = entry.ifa_addr->sa_family;
  if (family != AF_INET6) return family == AF_INET;
  return !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(entry.ifa_addr)->sin6_addr);
}

}  // namespace

socklen_t address_length(sa_family_t family) {
  return family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
}

Result<Interfaces> Interfaces::list() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    return Status::unreachable(std::string("cannot list the network interfaces: ") +
                               std::strerror(errno));
  }
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> guard(list, freeifaddrs);
  Interfaces found;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    found.names.insert(entry->ifa_name);
    if (!is_usable(*entry)) continue;
    InterfaceAddress& one = found.addresses.emplace_back();
    one.interface = entry->ifa_name;
    const socklen_t length = address_length(entry->ifa_addr->sa_family);
    std::memcpy(&one.address, entry->ifa_addr, length);
    if (entry->ifa_netmask != nullptr) std::memcpy(&one.netmask, entry->ifa_netmask, length);
  }
  return found;
}

}  // namespace perseus
