#include "base/free_port.h"

#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>

namespace perseus {
namespace {

in_port_t* port_of(sockaddr_storage& address) {
  if (address.ss_family == AF_INET) return &reinterpret_cast<sockaddr_in&>(address).sin_port;
  if (address.ss_family == AF_INET6) return &reinterpret_cast<sockaddr_in6&>(address).sin6_port;
  return nullptr;
}

int bind_once(int socket, const sockaddr_storage& address, socklen_t size) {
  return ::bind(socket, reinterpret_cast<const sockaddr*>(&address), size) == 0 ? 0 : errno;
}

// Tries all ports that the system does not assign.
int bind_to_another(int socket, sockaddr_storage address, socklen_t size) {
  constexpr int kFirst = 1024, kPorts = 65536 - kFirst;
  const PortRange assigned = assigned_ports();
  const int begin = static_cast<int>(std::random_device()() % kPorts);
  for (int i = 0; i < kPorts; ++i) {
    const int port = kFirst + (begin + i) % kPorts;
    if (assigned.has(port)) continue;
    *port_of(address) = htons(static_cast<uint16_t>(port));
    const int error = bind_once(socket, address, size);
    if (error != EADDRINUSE) return error;
  }
  return EADDRINUSE;
}

}  // namespace

int bind_to(int socket, const sockaddr* address, socklen_t size) {
  sockaddr_storage where{};
  std::memcpy(&where, address, std::min<size_t>(size, sizeof where));
  const int error = bind_once(socket, where, size);
  const in_port_t* port = port_of(where);
  const bool is_any = port != nullptr && *port == 0;
  return error == EADDRINUSE && is_any ? bind_to_another(socket, where, size) : error;
}

int connect_to(int socket, const sockaddr* address, socklen_t size) {
  if (::connect(socket, address, size) == 0) return 0;
  if (errno != EADDRNOTAVAIL) return errno;
  sockaddr_storage from{};
  from.ss_family = address->sa_family;
  socklen_t length = sizeof from;
  // The socket may be bound to an address already.
  if (port_of(from) == nullptr ||
      getsockname(socket, reinterpret_cast<sockaddr*>(&from), &length) != 0 ||
      *port_of(from) != 0 || bind_to_another(socket, from, length) != 0) {
    return EADDRNOTAVAIL;
  }
  return ::connect(socket, address, size) == 0 ? 0 : errno;
}

PortRange assigned_ports() {
  PortRange range, read;
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  if (file >> read.first >> read.last) range = read;
  return range;
}

}  // namespace perseus
