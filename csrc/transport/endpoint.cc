#include "transport/endpoint.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/free_port.h"
#include "bootstrap/port_holder.h"

namespace perseus {
namespace {

const sockaddr_in& as_v4(const Endpoint& endpoint) {
  return reinterpret_cast<const sockaddr_in&>(endpoint.address);
}
const sockaddr_in6& as_v6(const Endpoint& endpoint) {
  return reinterpret_cast<const sockaddr_in6&>(endpoint.address);
}
const sockaddr_un& as_unix(const Endpoint& endpoint) {
  return reinterpret_cast<const sockaddr_un&>(endpoint.address);
}

}  // namespace

Endpoint Endpoint::unix_name(std::string_view name) {
  Endpoint endpoint;
  auto& address = reinterpret_cast<sockaddr_un&>(endpoint.address);
  address.sun_family = AF_UNIX;
  // A leading zero byte makes the name abstract, so that no file is left behind.
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  endpoint.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return endpoint;
}

bool Endpoint::is_loopback() const {
  if (family() == AF_INET) return ntohl(as_v4(*this).sin_addr.s_addr) >> 24 == 127;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&as_v6(*this).sin6_addr);
}

uint16_t Endpoint::port() const {
  return ntohs(family() == AF_INET ? as_v4(*this).sin_port : as_v6(*this).sin6_port);
}

void Endpoint::set_port(uint16_t port) {
  if (family() == AF_INET) {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(port);
  }
}

bool Endpoint::same_address(const Endpoint& other) const {
  if (family() != other.family()) return false;
  if (family() == AF_INET) return as_v4(*this).sin_addr.s_addr == as_v4(other).sin_addr.s_addr;
  return IN6_ARE_ADDR_EQUAL(&as_v6(*this).sin6_addr, &as_v6(other).sin6_addr);
}

std::string Endpoint::to_string() const {
  char text[INET6_ADDRSTRLEN] = "?";
  if (family() == AF_INET) {
    inet_ntop(AF_INET, &as_v4(*this).sin_addr, text, sizeof text);
    return std::string(text) + ":" + std::to_string(port());
  }
  if (family() == AF_INET6) {
    inet_ntop(AF_INET6, &as_v6(*this).sin6_addr, text, sizeof text);
    return "[" + std::string(text) + "]:" + std::to_string(port());
  }
  return "unix:" +
         std::string(as_unix(*this).sun_path + 1, length - offsetof(sockaddr_un, sun_path) - 1);
}

std::string Endpoint::pack() const {
  return std::string(reinterpret_cast<const char*>(&address), length);
}

Result<Endpoint> Endpoint::unpack(std::string_view packed) {
  Endpoint endpoint;
  const bool fits = packed.size() >= sizeof(sa_family_t) && packed.size() <= sizeof(sockaddr_un);
  if (fits) {
    std::memcpy(&endpoint.address, packed.data(), packed.size());
    endpoint.length = static_cast<socklen_t>(packed.size());
    const int family = endpoint.family();
    if ((family == AF_INET && packed.size() == sizeof(sockaddr_in)) ||
        (family == AF_INET6 && packed.size() == sizeof(sockaddr_in6)) ||
        (family == AF_UNIX && packed.size() > offsetof(sockaddr_un, sun_path) + 1)) {
      return endpoint;
    }
  }
  return Status::internal("an address card holds a malformed address");
}

Result<FileDescriptor> listen_at(Endpoint& where) {
  FileDescriptor fd(socket(where.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  int error = fd ? 0 : errno;
  if (fd && where.family() == AF_INET6) {
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on);
  }
  if (error == 0) error = bind_to(fd.get(), where.get(), where.length);
  if (error == 0 && listen(fd.get(), SOMAXCONN) != 0) error = errno;
  if (error != 0) {
    const std::string holder =
        error == EADDRINUSE && where.family() != AF_UNIX ? holder_of_assigned_ports() : "";
    return Status::unreachable("cannot listen at " + where.to_string() + ": " +
                               std::strerror(error) + (holder.empty() ? "" : "; " + holder));
  }
  socklen_t length = sizeof where.address;
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&where.address), &length);
  return fd;
}

}  // namespace perseus
