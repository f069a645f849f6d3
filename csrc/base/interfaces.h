// The addresses that this host's network interfaces have.
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
  sockaddr_storage netmask{};  // of no family if unknown
};

struct Interfaces {
  std::set<std::string> names;  // of all that there are
  // Of those that are up, but for IPv6 link-local ones: they mean nothing without the name of an
  // interface on the other side.
  std::vector<InterfaceAddress> addresses;

  static Result<Interfaces> list();
};

// Of an address of this family, in bytes.
socklen_t address_length(sa_family_t family);

}  // namespace perseus
