// An address to connect to: an IPv4 or IPv6 address and port, or an abstract Unix name.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"
#include "base/status.h"

namespace perseus {

struct Endpoint {
  sockaddr_storage address{};
  socklen_t length = 0;

  static Endpoint unix_name(std::string_view name);  // at most 100 bytes

  int family() const { return address.ss_family; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
  bool is_loopback() const;
  uint16_t port() const;
  void set_port(uint16_t port);
  // Compares IP addresses without ports.
  bool same_address(const Endpoint& other) const;
  // "10.0.0.1:4711", "[fd00::1]:4711" or "unix:name".
  std::string to_string() const;

  // The form in an address card.
  std::string pack() const;
  static Result<Endpoint> unpack(std::string_view packed);
};

// Opens a non-blocking stream socket that listens at `where`, whose port is filled in if it was 0.
Result<FileDescriptor> listen_at(Endpoint& where);

}  // namespace perseus
