// The addresses of this host's network interfaces.
#pragma once

#include <sys/socket.h>

#include <set>
#include <string>
#include <vector>

#include "base/status.h"

namespace perseus {

struct InterfaceAddress {
  std::string interface;
  sockaddr_storage address{};  // IPv4 or IPv6
  sockaddr_storage netmask{};  // family AF_UNSPEC if unknown
};

struct Interfaces {
  std::set<std::string> names;  // all interfaces, up or not
  // The addresses of interfaces that are up. Without IPv6 link-local addresses, which mean nothing
  // to another host unless it knows through which of its own interfaces to go.
  std::vector<InterfaceAddress> addresses;

  static Result<Interfaces> list();
};

// The size in bytes of an address of this family.
socklen_t address_length(sa_family_t family);

}  // namespace perseus
