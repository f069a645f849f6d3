#include "bootstrap/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstring>
#include <memory>

#include "base/free_port.h"
#include "base/interruption.h"
#include "bootstrap/port_holder.h"

namespace perseus {
namespace {

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

std::string error_text(int error) { return std::strerror(error); }

Result<AddressList> resolve(const std::string& host, uint16_t port, int flags,
                            bool* final = nullptr) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(),
                                &hints, &found);
  if (error != 0) {
    // A name server that does not answer (EAI_AGAIN) may do so later.
    if (final != nullptr && (error == EAI_NONAME || error == EAI_NODATA)) *final = true;
    return Status::unreachable("the host name '" + host +
                               "' cannot be resolved: " + gai_strerror(error));
  }
  return AddressList(found, &freeaddrinfo);
}

Socket open_for(const addrinfo& address) {
  return Socket(
      ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol));
}

void set_option(const Socket& socket, int level, int name, int value) {
  setsockopt(socket.fd(), level, name, &value, sizeof(value));
}

// The name of one end of a connection, which `get` finds. It is the same seen from both ends.
std::string name_of(int fd, int (*get)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (get(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), port,
                  sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  std::string_view name = host;
  // An IPv4 peer of a socket that accepts both.
  if (name.starts_with("::ffff:")) name.remove_prefix(7);
  name = name.substr(0, name.find('%'));  // each host has its own name for an interface
  return (name.find(':') == name.npos ? std::string(name) : "[" + std::string(name) + "]") + ":" +
         port;
}

// Returns 0, or an errno.
int try_listen(const addrinfo& address, Socket& out) {
  Socket socket = open_for(address);
  if (!socket) return errno;
  set_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
  // A socket on [::] accepts IPv4 as well.
  if (address.ai_family == AF_INET6) set_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (const int error = bind_to(socket.fd(), address.ai_addr, address.ai_addrlen); error != 0) {
    return error;
  }
  if (::listen(socket.fd(), SOMAXCONN) != 0) return errno;
  out = std::move(socket);
  return 0;
}

// For an error that says that a port, or with 0 each one, is in use.
std::string in_the_way(uint16_t port) {
  if (port != 0) {
    const std::string holder = holder_of_port(port);
    return holder.empty() ? "" : ", by " + holder;
  }
  const std::string holder = holder_of_assigned_ports();
  return "; no port is free" + (holder.empty() ? "" : ": " + holder);
}

}  // namespace

Result<HostPort> parse_host_port(std::string_view text) {
  HostPort where;
  const size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, colon == text.npos ? 0 : colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const bool host_is_good = !host.empty() && (bracketed || host.find(':') == host.npos);
  const char* begin = text.data() + (colon == text.npos ? text.size() : colon + 1);
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(begin, end, where.port);
  if (!host_is_good || error != std::errc() || stop != end || where.port == 0) {
    return Status::invalid_argument("'" + std::string(text) +
                                    "' is not of the form host:port or [address]:port, with a port "
                                    "of 1 to 65535");
  }
  where.host = host;
  return where;
}

std::string to_string(const HostPort& where) {
  const bool bracket = where.host.find(':') != std::string::npos;
  return (bracket ? "[" + where.host + "]" : where.host) + ":" + std::to_string(where.port);
}

Result<Socket> Socket::listen(const std::string& address, uint16_t port) {
  Result<AddressList> list = resolve(address, port, AI_PASSIVE);
  if (!list.is_ok()) return list.status();
  Socket socket;
  int error = 0;
  // For every interface, IPv6 comes first, since it includes IPv4 but not the other way round.
  for (const int family : {AF_INET6, AF_INET}) {
    for (const addrinfo* a = list.value().get(); a != nullptr; a = a->ai_next) {
      if (a->ai_family != family) continue;
      error = try_listen(*a, socket);
      if (error == 0) return socket;
      if (error == EADDRINUSE) break;
    }
    if (error == EADDRINUSE) break;
  }
  const std::string where = to_string(HostPort{address.empty() ? "*" : address, port});
  return Status::unreachable("cannot listen on " + where + ": " + error_text(error) +
                             (error == EADDRINUSE ? in_the_way(port) : ""));
}

Result<Socket> Socket::connect(const HostPort& where, Clock::time_point deadline, bool* final) {
  Result<AddressList> list = resolve(where.host, where.port, 0, final);
  if (!list.is_ok()) return list.status();
  int error = EADDRNOTAVAIL;
  for (const addrinfo* a = list.value().get(); a != nullptr; a = a->ai_next) {
    // Each address gets a share of the time, since packets to the first may be dropped silently.
    const Clock::time_point now = Clock::now();
    Socket socket = open_for(*a);
    error =
        !socket ? errno : socket.connect_to(*a, a->ai_next ? now + (deadline - now) / 2 : deadline);
    if (error == 0) {
      set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
      return socket;
    }
  }
  return Status::unreachable("cannot connect to " + to_string(where) + ": " + error_text(error));
}

int Socket::connect_to(const addrinfo& address, Clock::time_point deadline) {
  int error = perseus::connect_to(fd(), address.ai_addr, address.ai_addrlen);
  if (error != EINPROGRESS && error != EINTR) return error;
  if (!wait_for(POLLOUT, deadline).is_ok()) return ETIMEDOUT;
  error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd(), SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

uint16_t Socket::local_port() const {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port);
}

bool Socket::is_open() const {
  char byte;
  const ssize_t count = recv(fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return count > 0 || (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
}

std::string Socket::peer_name() const { return name_of(fd(), getpeername); }

std::string Socket::local_name() const { return name_of(fd(), getsockname); }

Status Socket::wait_for(short poll_events, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return Status::timed_out("the time-out ended");
    if (is_interrupted()) return interrupted_status();
    pollfd entry{fd(), poll_events, 0};
    const int64_t most = can_be_interrupted() ? kInterruptionCheck.count() : INT_MAX;
    const int count = poll(&entry, 1, static_cast<int>(std::min<int64_t>(left, most)));
    if (count > 0) return Status::ok();
    if (count < 0 && errno != EINTR) return Status::internal("poll: " + error_text(errno));
  }
}

Status Socket::send_all(std::string_view bytes, Clock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(sent);
    } else if (errno == EAGAIN) {
      PERSEUS_RETURN_IF_ERROR(wait_for(POLLOUT, deadline));
    } else if (errno != EINTR) {
      return Status::aborted("the connection broke: " + error_text(errno));
    }
  }
  return Status::ok();
}

Status Socket::receive_exactly(char* bytes, size_t count, Clock::time_point deadline) {
  while (count > 0) {
    const ssize_t received = recv(fd(), bytes, count, 0);
    if (received > 0) {
      bytes += received;
      count -= received;
    } else if (received == 0) {
      return Status::aborted("the other end closed the connection");
    } else if (errno == EAGAIN) {
      PERSEUS_RETURN_IF_ERROR(wait_for(POLLIN, deadline));
    } else if (errno != EINTR) {
      return Status::aborted("the connection broke: " + error_text(errno));
    }
  }
  return Status::ok();
}

}  // namespace perseus
