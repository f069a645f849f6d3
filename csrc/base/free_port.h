// Free TCP ports where another user has taken all that the system would assign.
#pragma once

#include <sys/socket.h>

namespace perseus {

// Binds a socket to an address of IPv4 or IPv6. If its port is 0, the system assigns one; if it has
// none left, takes any other one above 1023, the first of them at random. Returns 0 or an errno.
int bind_to(int socket, const sockaddr* address, socklen_t size);

// Like connect(2), also where the system has no port left for this end. Returns 0 or an errno.
int connect_to(int socket, const sockaddr* address, socklen_t size);

// The ports from which the system assigns one: both ends are among them.
struct PortRange {
  int first = 32768, last = 60999;  // Linux' own choice, where it cannot be read
  bool has(int port) const { return port >= first && port <= last; }
  int size() const { return last - first + 1; }
};
PortRange assigned_ports();

}  // namespace perseus
