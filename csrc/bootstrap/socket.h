// A TCP socket, for the rendezvous. IPv4 and IPv6.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"
#include "base/status.h"

struct addrinfo;

namespace perseus {

// The place at which a rendezvous is served.
struct HostPort {
  std::string host;
  uint16_t port = 0;
};
// "host:port", "1.2.3.4:port" or "[v6 address]:port".
Result<HostPort> parse_host_port(std::string_view text);
std::string to_string(const HostPort& where);

// One thread at a time.
class Socket {
 public:
  using Clock = std::chrono::steady_clock;

  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}

  // Listens; the socket does not block. An empty `address` means every interface, `port` 0 any free
  // port.
  static Result<Socket> listen(const std::string& address, uint16_t port);
  // Tries each address that the host's name stands for once. Sets `final` (may be null) if there is
  // no such name, so that trying again is of no use.
  static Result<Socket> connect(const HostPort& where, Clock::time_point deadline,
                                bool* final = nullptr);

  int fd() const { return fd_.get(); }
  explicit operator bool() const { return static_cast<bool>(fd_); }
  uint16_t local_port() const;
  // Returns whether the other end has not closed the connection. Does not wait.
  bool is_open() const;
  // "10.0.0.1:4711", or "?" if the connection is gone. The peer's, and this end's.
  std::string peer_name() const;
  std::string local_name() const;

  // These wait until the deadline, then return kTimedOut. kAborted if the other end has closed or
  // reset the connection.
  Status send_all(std::string_view bytes, Clock::time_point deadline);
  Status receive_exactly(char* bytes, size_t count, Clock::time_point deadline);

 private:
  // Returns 0, or an errno.
  int connect_to(const addrinfo& address, Clock::time_point deadline);
  Status wait_for(short poll_events, Clock::time_point deadline);

  FileDescriptor fd_;
};

}  // namespace perseus
